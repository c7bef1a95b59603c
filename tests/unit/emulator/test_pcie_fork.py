"""A child that is forked off a process with a device leaves the device alone."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
from collections.abc import Callable

import pytest

from emulator.pcie.device import PcieDevice
from kvlane.errors import VerbsError
from kvlane.verbs.enums import QpState, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import WC, new_records
from tests.support.verbs_backends import ALL_ACCESS, Pair

_UNEXPECTED = 99
_PATIENCE_S = 60.0


def in_child(act: Callable[[], None]) -> int:
    """The exit status of a forked child that does this and no more."""
    with warnings.catch_warnings():
        # The child calls nothing that another thread of this process may have locked.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = _UNEXPECTED
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("held", [False, True])
def test_what_a_child_does_with_it_the_parent_does_not_see(held: bool) -> None:
    device = PcieDevice()
    pair = Pair(device).connect()
    pair.far.post_recv(pair.receives(2))

    def misuse() -> None:
        assert device.progress() is False
        device.wait(0.0)
        for use in (
            lambda: pair.near.post_send(pair.sends()),
            lambda: pair.cq.poll(new_records(WC, 4)),
            lambda: device.create_cq(4),
            lambda: device.create_qp(pair.cq, QpOptions()),
            lambda: device.register(pair.near_bytes, ALL_ACCESS),
            lambda: device.alloc(4096),
        ):
            with pytest.raises(VerbsError, match="closed"):
                use()
        pair.near_region.close()
        pair.near.close()
        pair.far.close()
        pair.cq.close()
        device.close()
        gc.collect()

    try:
        if held:
            with device.hold():
                assert in_child(misuse) == 0
        else:
            assert in_child(misuse) == 0
        assert (pair.near.state, pair.far.state) == (QpState.RTS, QpState.RTS)
        pair.near_bytes[:] = 7
        pair.near.post_send(pair.sends())
        pair.near.post_send(pair.sends(opcode=WrOpcode.RDMA_WRITE))
        assert (pair.completions(3).status == WcStatus.SUCCESS).all()
        assert (pair.far_bytes == 7).all()
    finally:
        device.close()


def test_a_child_opens_devices_of_its_own() -> None:
    parents = PcieDevice()

    def use_own() -> None:
        device = PcieDevice()
        pair = Pair(device).connect()
        pair.near.post_send(pair.sends(opcode=WrOpcode.RDMA_WRITE))
        assert pair.completions(1).status[0] == WcStatus.SUCCESS
        device.close()

    assert in_child(use_own) == 0
    parents.close()


def test_memory_of_a_dead_parent_does_not_live_on_in_its_child() -> None:
    """A child holds neither descriptors nor boards of the devices that it left."""
    device = PcieDevice()
    Pair(device).connect()

    def count() -> None:
        names = [os.readlink(f"/proc/self/fd/{fd}") for fd in device_descriptors(before)]
        assert not names, names

    before = {int(fd) for fd in os.listdir("/proc/self/fd")}
    device.close()
    device = PcieDevice()
    Pair(device).connect()
    try:
        assert in_child(count) == 0
    finally:
        device.close()


def device_descriptors(before: set[int]) -> list[int]:
    """Open descriptors that ``before`` does not name and that are of this link."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if int(name) not in before and "kvlane-" in target:
            found.append(int(name))
    return found


def test_a_fork_waits_for_a_thread_that_has_the_device() -> None:
    device = PcieDevice()
    half_way, is_held = [False], threading.Event()

    def change() -> None:
        with device.hold():
            half_way[0] = True
            is_held.set()
            give_up = time.monotonic() + _PATIENCE_S
            while not device.state.wanted[0] and time.monotonic() < give_up:
                time.sleep(0.001)
            half_way[0] = False

    thread = threading.Thread(target=change)
    thread.start()

    def check() -> None:
        assert not half_way[0]

    try:
        assert is_held.wait(_PATIENCE_S)
        assert in_child(check) == 0
    finally:
        thread.join()
        device.close()
    with device.hold():
        pass
