"""Debian's kernel and RDMA programs for the guest: downloaded and unpacked, never installed."""

from __future__ import annotations

import hashlib
import lzma
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

KERNEL_META_PACKAGE = "linux-image-amd64"
PACKAGES = (
    "rdma-core",
    "ibverbs-providers",
    "ibverbs-utils",
    "libibumad3",
    "libibverbs1",
    "libnl-3-200",
    "libnl-route-3-200",
    "librdmacm1",
    "rdmacm-utils",
    "perftest",
    "python3-pyverbs",
    "libpci3",
    "kmod",
    "libkmod2",
    "iproute2",
    "busybox-static",
)
"""What the guest has beside the files of this machine, which it sees read-only."""

_DOWNLOAD_TIMEOUT_S = 300
# Linux boot protocol, Documentation/x86/boot.rst: offsets in a bzImage.
_SETUP_SECTORS_AT = 0x1F1
_PAYLOAD_AT = 0x248
_SECTOR_BYTES = 512


class GuestError(Exception):
    """The guest cannot be built or booted here; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class GuestFiles:
    """What the guest is made of, below one folder."""

    folder: Path
    kernel_version: str

    @property
    def tree(self) -> Path:
        """The unpacked packages, laid over the root of this machine."""
        return self.folder / "tree"

    @property
    def modules(self) -> Path:
        """The kernel's modules."""
        return self.tree / "usr/lib/modules" / self.kernel_version

    @property
    def kernel(self) -> Path:
        """The kernel as ELF, which boots without unpacking itself."""
        return self.folder / "vmlinux"

    @property
    def initramfs(self) -> Path:
        """The archive that the kernel starts from."""
        return self.folder / "initramfs.cpio"


def cache_folder() -> Path:
    """``XDG_CACHE_HOME``, else ``~/.cache``, and below it a folder of our own."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "kvlane" / "interop"


def obtain(cache: Path) -> GuestFiles:
    """Files of the guest except its initramfs, from the cache or fetched into it.

    Other packages or another release of Debian make another folder; a folder appears when it is
    complete. Raises GuestError when apt cannot get the packages.
    """
    release = platform.freedesktop_os_release().get("VERSION_ID", "")
    facts = "\n".join((*PACKAGES, release)).encode()
    folder = cache / f"guest-{hashlib.sha256(facts).hexdigest()[:12]}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as name:
            made = Path(name) / "guest"
            _build(GuestFiles(made, _kernel_package().removeprefix("linux-image-")))
            with suppress(OSError):  # another run was faster
                made.rename(folder)
    return GuestFiles(folder, (folder / "kernel-version").read_text().strip())


def _build(files: GuestFiles) -> None:
    archives = files.folder / "archives"
    archives.mkdir(parents=True)
    kernel_package = f"linux-image-{files.kernel_version}"
    _run(["apt-get", "-q", "download", kernel_package, *PACKAGES], archives)
    _unpack(sorted(archives.glob("*.deb")), files.tree)
    bzimage = (files.tree / "boot" / f"vmlinuz-{files.kernel_version}").read_bytes()
    files.kernel.write_bytes(elf_of(bzimage))
    _index_modules(files)
    shutil.rmtree(archives)
    (files.folder / "kernel-version").write_text(files.kernel_version)


def elf_of(bzimage: bytes) -> bytes:
    """The ELF kernel inside a bzImage.

    QEMU starts the ELF by its PVH note; unpacking it in an emulated processor takes seconds.
    """
    setup_sectors = bzimage[_SETUP_SECTORS_AT] or 4
    offset, length = struct.unpack_from("<II", bzimage, _PAYLOAD_AT)
    start = (setup_sectors + 1) * _SECTOR_BYTES + offset
    payload = bzimage[start : start + length]
    if payload.startswith(b"\xfd7zXZ\0"):
        elf = lzma.LZMADecompressor().decompress(payload)
    elif payload.startswith(b"\x1f\x8b"):
        elf = zlib.decompressobj(wbits=31).decompress(payload)
    else:
        raise GuestError(f"the kernel is packed by a method that is unknown here: {payload[:6]!r}")
    if not elf.startswith(b"\x7fELF"):
        raise GuestError("the kernel's payload is no ELF file")
    return elf


def _kernel_package() -> str:
    """The newest kernel package, to which the meta package points."""
    text = _run(["apt-cache", "depends", KERNEL_META_PACKAGE])
    match = re.search(r"Depends: (linux-image-[0-9]\S+)", text)
    if match is None:
        raise GuestError(
            f"apt knows no {KERNEL_META_PACKAGE}; run apt-get update. The guest is x86-64 Debian"
        )
    return match[1]


def _unpack(archives: Sequence[Path], tree: Path) -> None:
    """Unpack into a tree in which /lib is a link to /usr/lib, as on this machine.

    Otherwise a folder of that name would hide this machine's /lib once laid over it, so tar
    must keep the links, which dpkg does not.
    """
    (tree / "usr").mkdir(parents=True)
    for name in ("bin", "sbin", "lib"):
        (tree / "usr" / name).mkdir()
        (tree / name).symlink_to(f"usr/{name}")
    for archive in archives:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as p:
            command = ["tar", "-x", "-C", tree, "--keep-directory-symlink"]
            subprocess.run(command, stdin=p.stdout, check=True)
        if p.returncode:
            raise GuestError(f"dpkg-deb cannot unpack {archive.name}")


def _index_modules(files: GuestFiles) -> None:
    """Write modules.dep; kmod is called by the name depmod, whose link is absolute."""
    library = files.tree / "usr/lib/x86_64-linux-gnu"
    command = ["depmod", "-b", str(files.tree), files.kernel_version]
    subprocess.run(
        command,
        executable=files.tree / "usr/bin/kmod",
        env={**os.environ, "LD_LIBRARY_PATH": str(library)},
        check=True,
    )


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_TIMEOUT_S,
            check=True,
        )
    except FileNotFoundError:
        raise GuestError(
            f"{command[0]} is missing: the guest is built on Debian or Ubuntu"
        ) from None
    except subprocess.CalledProcessError as error:
        raise GuestError(f"{' '.join(command[:2])}: {error.stderr.strip()[-400:]}") from None
    return done.stdout
