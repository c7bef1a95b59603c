"""Two hosts on one Ethernet cable: network namespaces of the test's own, joined by a veth pair.

Sockets belong to the namespace in which they were opened, whoever uses them; so a test opens
each end inside its host and runs both in one thread.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.requirements import lacking

NEW_NETWORK = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_cables = itertools.count()


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace with one interface, ``wire``."""

    name: str
    ipv4: str
    link_local: str
    ipv6: str
    """Of a prefix of its own."""

    INTERFACE = "wire"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is in the namespace."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            _enter(there)
            yield
        finally:
            _enter(here)
            os.close(there)
            os.close(here)

    def ip(self, *words: str) -> None:
        """Run ``ip`` inside."""
        run_ip("-n", self.name, *words)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, NEW_NETWORK):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def run_ip(*words: str) -> None:
    """``ip`` of iproute2; a failure says what it said."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def _require_permission() -> None:
    if shutil.which("ip") is None:
        lacking("ip is not installed; it is of Debian's package iproute2")
    probe = f"kvprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode:
        lacking(
            "this user may make no network namespaces; run the tests as root, in a container "
            f"with CAP_SYS_ADMIN and CAP_NET_ADMIN: {made.stderr.strip()}"
        )
    run_ip("netns", "del", probe)


@contextmanager
def cable(mtu_bytes: int = 4500) -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other; a test is skipped where it may not make them."""
    _require_permission()
    name = f"kv{os.getpid()}-{next(_cables)}"
    hosts = tuple(
        Host(f"{name}-{n}", f"10.77.0.{n}", f"fe80::77:{n}", f"fd77::{n}") for n in (1, 2)
    )
    try:
        for host in hosts:
            run_ip("netns", "add", host.name)
        wire = Host.INTERFACE
        one, two = hosts
        run_ip(
            *("link", "add", wire, "netns", one.name, "mtu", str(mtu_bytes), "type", "veth"),
            *("peer", "name", wire, "netns", two.name, "mtu", str(mtu_bytes)),
        )
        for host in hosts:
            _give_addresses(host)
        yield one, two
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)


def _give_addresses(host: Host) -> None:
    """``nodad``: an address that is looked for duplicates of cannot be used for seconds."""
    wire = host.INTERFACE
    host.ip("link", "set", "lo", "up")
    host.ip("link", "set", wire, "addrgenmode", "none")
    host.ip("link", "set", wire, "up")
    host.ip("address", "add", f"{host.ipv6}/64", "dev", wire, "nodad")
    host.ip("address", "add", f"{host.link_local}/64", "dev", wire, "nodad")
    host.ip("address", "add", f"{host.ipv4}/24", "dev", wire)
