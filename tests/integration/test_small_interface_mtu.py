"""On an interface with Ethernet's MTU, data flows without anybody's configuring; a path MTU that
is configured too large is told, and counted.

The interface is loopback in a network namespace of the test's own, which needs no root where
the kernel lets users have namespaces.
"""

from __future__ import annotations

import json

from tests.support.repository import ROOT, run_python
from tests.support.requirements import lacking

IN_A_NAMESPACE = """
import ctypes, fcntl, os, socket, struct, sys

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
if ctypes.CDLL(None, use_errno=True).unshare(NEW_USER | NEW_NETWORK):
    sys.exit(77)
SET_MTU, SET_FLAGS, UP = 0x8922, 0x8914, 1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, SET_MTU, struct.pack("16si12x", b"lo", 1500))
    fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP))

import json, logging, time
from emulator.backend import open_device
from host_driver.self_test import self_test

logging.basicConfig(format="%(message)s")
device = open_device(json.loads(sys.argv[1]))
self_test(device, time.monotonic_ns)
print(json.dumps({"name": device.name, "lost": device.counters()["link_lost_sending"]}))
"""


def carry_data(options: dict[str, object]) -> tuple[dict[str, object], str]:
    """What a NIC says after it has sent, read and written over such an interface; and its log."""
    done = run_python(["-c", IN_A_NAMESPACE, json.dumps(options)], cwd=ROOT)
    if done.returncode == 77:
        lacking(
            "this user may make no network namespaces; set user.max_user_namespaces above 0, or "
            "run the tests as root"
        )
    assert done.returncode == 0, done.stderr
    said: dict[str, object] = json.loads(done.stdout)
    return said, done.stderr


def test_by_default_packets_fit() -> None:
    said, log = carry_data({})
    assert "MTU 1024" in str(said["name"])
    assert (said["lost"], log) == (0, "")


def test_packets_that_do_not_fit_are_told_once_and_counted() -> None:
    said, log = carry_data({"mtu_bytes": 4096})
    assert int(str(said["lost"])) > 1
    assert log.count("give this NIC a smaller mtu_bytes") == 1
    assert "cannot carry data to itself" in log
