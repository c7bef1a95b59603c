"""The guest as a running process: QEMU with one network card on a tap."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop.guest.packages import GuestError, GuestFiles

_START = Path(__file__).with_name("guest") / "start.sh"
_MEMORY_MB = 1536
_STOP_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class GuestNetwork:
    """The guest's end of the wire."""

    tap: str
    mac: str
    ipv4: str
    """With the length of its prefix."""
    ipv6: str
    mtu_bytes: int


@dataclass(slots=True)
class Guest:
    """A guest that is running, or has run."""

    process: subprocess.Popen[bytes]
    exchange: Path

    @property
    def console(self) -> str:
        """What kernel and programs have printed so far."""
        path = self.exchange / "console.log"
        return path.read_text(errors="replace") if path.is_file() else ""

    def require_running(self) -> None:
        """GuestError, with the console's last lines, when it is not."""
        if self.process.poll() is not None:
            tail = "\n".join(self.console.splitlines()[-15:])
            raise GuestError(f"the guest has ended, status {self.process.returncode}:\n{tail}")


@contextmanager
def running(
    files: GuestFiles, network: GuestNetwork, exchange: Path, program: str
) -> Iterator[Guest]:
    """Boot, run ``program`` (text for sh, in the guest's /exchange) and stop whatever happens.

    ``exchange`` is a folder that both sides see.
    """
    shutil.copy(_START, exchange / "start.sh")
    (exchange / "program.sh").write_text(program)
    settings = {
        "MTU_BYTES": str(network.mtu_bytes),
        "IPV4": network.ipv4,
        "IPV6": network.ipv6,
    }
    (exchange / "settings.sh").write_text(_assignments(settings))
    with (exchange / "console.log").open("wb") as console:
        try:
            process = subprocess.Popen(
                _command(files, network, exchange),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
            )
        except FileNotFoundError:
            raise GuestError(
                "qemu-system-x86_64 is missing: apt-get install qemu-system-x86"
            ) from None
    try:
        yield Guest(process, exchange)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _assignments(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())


def _command(files: GuestFiles, network: GuestNetwork, exchange: Path) -> list[str]:
    """TCG and the plainest machine: on nested or shared machines KVM opens and then fails."""
    share = "security_model=none"
    return [
        "qemu-system-x86_64",
        *("-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", str(_MEMORY_MB)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-serial", "stdio", "-device", "virtio-rng-pci"),
        *("-kernel", str(files.kernel), "-initrd", str(files.initramfs)),
        "-append",
        "console=ttyS0 quiet panic=-1 mitigations=off nokaslr net.ifnames=0",
        *("-virtfs", f"local,path=/,mount_tag=host,{share},readonly=on,multidevs=remap"),
        *("-virtfs", f"local,path={files.tree},mount_tag=tree,{share},readonly=on"),
        *("-virtfs", f"local,path={exchange},mount_tag=exchange,{share}"),
        *("-netdev", f"tap,id=wire,ifname={network.tap},script=no,downscript=no"),
        "-device",
        f"virtio-net-pci,netdev=wire,mac={network.mac},host_mtu={network.mtu_bytes},romfile=",
    ]
