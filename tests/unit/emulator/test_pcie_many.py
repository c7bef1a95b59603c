"""Many queue pairs on one device: each has its turn, and nobody is busy when nothing happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from emulator.pcie.device import PcieDevice
from kvlane.verbs.enums import QpState, SendFlags, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, new_records
from tests.support.pcie_ends import End
from tests.support.verbs_backends import ALL_ACCESS, PATIENCE_S, Pair, device_of

_COUNT = 64
_FLOOD = 64
_BLOCK_BYTES = 1 << 20
HOUR_MS = 3_600_000.0


def test_no_queue_pair_starves_while_one_floods() -> None:
    with device_of("pcie") as device:
        flooding = Pair(device).connect()
        others = [Pair(device).connect() for _ in range(_COUNT - 1)]
        blocks = device.alloc(_BLOCK_BYTES)
        region = device.register(blocks, ALL_ACCESS)
        flooding.near.post_send(
            flooding.sends(
                _FLOOD,
                WrOpcode.RDMA_WRITE,
                length=_BLOCK_BYTES,
                local_addr=region.addr,
                lkey=region.lkey,
                remote_addr=region.addr,
                rkey=region.rkey,
            )
        )
        for pair in others:
            pair.far.post_recv(pair.receives())
            pair.near.post_send(pair.sends())
        waiting, turns = set(range(len(others))), 0
        out = new_records(WC, 4)
        while waiting:
            device.progress()
            turns += 1
            assert turns < 4 * _COUNT
            waiting = {i for i in waiting if not _has_received(others[i], out)}
        done = sum(flooding.cq.poll(new_records(WC, 1)) for _ in range(_FLOOD))
        assert done < _FLOOD
        assert len(flooding.completions(_FLOOD - done)) == _FLOOD - done


def _has_received(pair: Pair, out: np.ndarray) -> bool:  # type: ignore[type-arg]
    came = pair.cq.poll(out)
    return bool((out.qp_num[:came] == pair.far.endpoint.qp_num).any())


@contextmanager
def driven(end: End) -> Iterator[None]:
    """A thread of this process drives the device and polls it, as agent and driver do."""
    is_over = threading.Event()

    def drive() -> None:
        while not is_over.is_set():
            worked = end.device.progress()
            if not worked and not end.poll():
                end.device.wait(HOUR_MS)

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        end.device.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def await_sleep(end: End, rx_messages: int, sleeps: int = 0) -> None:
    """Until so many messages have come and it sleeps, for the time after those ``sleeps``.

    Who only prepares to sleep is among the sleepers too, and may still find something to do.
    """
    give_up = time.monotonic() + PATIENCE_S
    context = end.device.state.context
    while not (context.rx_messages == rx_messages and context.sleepers and context.sleeps > sleeps):
        assert time.monotonic() < give_up
        time.sleep(0.001)


def test_a_device_with_many_idle_connections_sleeps_until_the_bell_rings() -> None:
    here, there = End(PcieDevice()), End(PcieDevice())
    inbox, outbox = there.alloc("inbox", 64), here.alloc("outbox", 64)
    for qp in range(_COUNT):
        near, far = here.open_qp(), there.open_qp()
        here.connect(qp, far)
        there.connect(qp, near)
        there.receive(qp, inbox)
    context = there.device.state.context
    own = here.device.state.context
    # So many introductions do not fit a socket's queue: the last of them are tried again.
    while own.backlog_due_ns or context.backlog_due_ns or own.unattached or context.unattached:
        here.device.progress()
        there.device.progress()
    with driven(there):
        await_sleep(there, 0)
        turns, sleeps = int(context.ticks), int(context.sleeps)
        for qp in range(_COUNT):
            slept = int(context.sleeps)
            here.request(qp, WrOpcode.SEND, outbox, inbox)
            assert here.completions(1)[0].status == WcStatus.SUCCESS
            await_sleep(there, qp + 1, slept)
        assert here.counters()["bells_rung"] == _COUNT
        assert context.ticks - turns <= 8 * _COUNT
        assert _COUNT // 2 <= context.sleeps - sleeps <= 4 * _COUNT
    here.close()


def test_a_queue_pair_that_fails_wakes_its_sleeping_peer() -> None:
    """However it fails: here by a message that is longer than the receive for it."""
    near, far = PcieDevice(), PcieDevice()
    cqs = near.create_cq(16), far.create_cq(16)
    qps = near.create_qp(cqs[0], QpOptions()), far.create_qp(cqs[1], QpOptions())
    memory = [device.alloc(4096) for device in (near, far)]
    regions = [
        device.register(own, ALL_ACCESS) for device, own in zip((near, far), memory, strict=True)
    ]
    qps[0].connect(qps[1].endpoint)
    qps[1].connect(qps[0].endpoint)

    def exchange(length: int) -> None:
        receive = new_records(RECV_WR, 1)
        receive.local_addr, receive.length, receive.lkey = regions[1].addr, 100, regions[1].lkey
        qps[1].post_recv(receive)
        send = new_records(SEND_WR, 1)
        send.opcode, send.send_flags = int(WrOpcode.SEND), int(SendFlags.SIGNALED)
        send.local_addr, send.length, send.lkey = regions[0].addr, length, regions[0].lkey
        qps[0].post_send(send)

    exchange(100)
    give_up = time.monotonic() + PATIENCE_S
    while not cqs[0].poll(new_records(WC, 1)):
        assert time.monotonic() < give_up
        near.progress()
        far.progress()
    exchange(101)
    while near.progress():
        pass
    sleeper = threading.Thread(target=near.wait, args=(HOUR_MS,), daemon=True)
    sleeper.start()
    while not near.state.context.sleepers:
        assert time.monotonic() < give_up
    while qps[1].state is not QpState.ERR:
        assert time.monotonic() < give_up
        far.progress()
    far.progress()
    sleeper.join(PATIENCE_S)
    assert not sleeper.is_alive()
    near.close()
    far.close()
