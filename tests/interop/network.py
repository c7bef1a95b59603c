"""The wire: a tap in a network namespace that ends with the process which made it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.interop.guest.packages import GuestError
from tests.interop.machine import GuestNetwork

TAP = "tap0"
MTU_BYTES = 4200
"""Holds a RoCE packet with 4096 bytes of payload, and its headers."""
HOST_IPV4 = "192.168.77.1"
GUEST_IPV4 = "192.168.77.2"
HOST_IPV6 = "fd77::1"
GUEST_IPV6 = "fd77::2"
TERMINATED = 143
"""Exit status of a program that SIGTERM has ended."""
_HOST_MAC = "52:54:00:77:00:01"
_SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of linux/prctl.h."""
_INSIDE = "KVLANE_INTEROP_NAMESPACE"
"""Set in the process that runs inside the namespace."""

GUEST = GuestNetwork(
    tap=TAP,
    mac="52:54:00:77:00:02",
    ipv4=f"{GUEST_IPV4}/24",
    ipv6=f"{GUEST_IPV6}/64",
    mtu_bytes=MTU_BYTES,
)


def is_inside() -> bool:
    """Whether this process has the namespace already."""
    return _INSIDE in os.environ


def run_inside(module: str, arguments: list[str]) -> int:
    """Run ``python -m module`` in namespaces of its own; its exit status.

    The network's has no name, so it goes with its last process. That of processes sees to it
    that there is a last one: all end with the first. The first is told to end when this process
    ends, however it does: ``unshare`` goes with this one, and tells its child.
    """
    if os.geteuid() != 0:
        raise GuestError("a network namespace with a tap takes root: run this as root")
    unshare = shutil.which("unshare")
    if unshare is None:
        raise GuestError("unshare is missing: apt-get install util-linux")
    namespaces = ["--net", "--pid", "--mount-proc", "--fork", "--kill-child=SIGTERM"]
    command = [unshare, *namespaces, "--", sys.executable, "-m", module, *arguments]
    stop_on_sigterm()
    process = subprocess.Popen(
        command, env={**os.environ, _INSIDE: "1"}, preexec_fn=_end_with_parent
    )
    try:
        return process.wait()
    finally:
        process.kill()  # it ignores milder signals


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def stop_on_sigterm() -> None:
    """Let SIGTERM unwind the program as an exception does, so that nothing is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))


def set_up() -> None:
    """Make the tap with its addresses, without duplicate detection, which takes a second."""
    _ip("link set lo up")
    _ip(f"tuntap add dev {TAP} mode tap")
    Path(f"/proc/sys/net/ipv6/conf/{TAP}/accept_dad").write_text("0")
    _ip(f"link set {TAP} address {_HOST_MAC} mtu {MTU_BYTES} up")
    _ip(f"addr add {HOST_IPV4}/24 dev {TAP}")
    _ip(f"addr add {HOST_IPV6}/64 dev {TAP} nodad")


def _ip(words: str) -> None:
    try:
        subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise GuestError("ip is missing: apt-get install iproute2") from None
    except subprocess.CalledProcessError as error:
        raise GuestError(f"ip {words}: {error.stderr.strip()}") from None
