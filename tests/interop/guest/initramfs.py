"""The archive that the guest's kernel starts from: busybox, some modules and a first program."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.interop.guest.packages import GuestError, GuestFiles

_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
"""What it takes to reach the shared folders; all other modules are loaded from there."""
_MOUNT_POINTS = ("proc", "sys", "dev", "host", "tree", "writable", "new", "exchange")
_FIRST_PROGRAM = Path(__file__).with_name("init.sh")


def build(files: GuestFiles) -> None:
    """Write ``files.initramfs``; GuestError when a program for that is missing."""
    if shutil.which("cpio") is None:
        raise GuestError("cpio is missing: apt-get install cpio")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for folder in ("bin", "modules", *_MOUNT_POINTS):
            (root / folder).mkdir()
        shutil.copy(files.tree / "bin/busybox", root / "bin/busybox")
        shutil.copy(_FIRST_PROGRAM, root / "init")
        (root / "init").chmod(0o755)
        order = load_order((files.modules / "modules.dep").read_text(), _MODULES)
        for path in order:
            shutil.copy(files.modules / path, root / "modules")
        (root / "modules/order").write_text("".join(f"{Path(path).name}\n" for path in order))
        fresh = Path(name + ".cpio")
        try:
            _pack(root, fresh)
            shutil.move(fresh, files.initramfs)
        finally:
            fresh.unlink(missing_ok=True)


def load_order(dependencies: str, modules: tuple[str, ...]) -> list[str]:
    """Paths of modules and of all that they need, each after what it needs.

    ``dependencies`` is the text of modules.dep: ``path: path path``, the nearest need first.
    """
    needs = dict(_entries(dependencies))
    order: list[str] = []
    for module in modules:
        path = next((path for path in needs if _is_called(path, module)), None)
        if path is None:
            raise GuestError(f"the kernel package has no module {module}")
        for needed in [*reversed(needs[path]), path]:
            if needed not in order:
                order.append(needed)
    return order


def _entries(dependencies: str) -> Iterator[tuple[str, list[str]]]:
    for line in dependencies.splitlines():
        path, _, needed = line.partition(":")
        yield path, needed.split()


def _is_called(path: str, module: str) -> bool:
    """Names of modules have dashes or underscores, as their authors liked."""
    return Path(path).name.partition(".")[0].replace("-", "_") == module.replace("-", "_")


def _pack(root: Path, archive: Path) -> None:
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    with archive.open("wb") as out:
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],
            cwd=root,
            input=names.encode(),
            stdout=out,
            check=True,
        )
