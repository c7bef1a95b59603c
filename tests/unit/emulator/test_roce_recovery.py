"""Loss, repetition and disorder at chosen packets: what is sent again, and what is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from emulator.wire.opcode import Opcode
from kvlane.verbs.enums import QpState, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.roce_pair import Channel, Frame, LossyChannel, Pair, reseal

MTU = 256
OPTIONS = QpOptions(ack_timeout_code=8, max_send_wr=256, max_recv_wr=256)


def opcode_of(frame: Frame) -> int:
    return frame[0][0]


def psn_of(frame: Frame) -> int:
    return int.from_bytes(frame[0][9:12], "big")


def once(match: Callable[[int, Frame], bool], act: Callable[[Frame], list[Frame]]) -> Channel:
    """A channel that does ``act`` to the first frame for which ``match(index, frame)`` holds."""
    state = {"seen": 0, "done": False}

    def channel(frames: list[Frame]) -> list[Frame]:
        out: list[Frame] = []
        for frame in frames:
            if not state["done"] and match(state["seen"], frame):
                state["done"] = True
                out += act(frame)
            else:
                out.append(frame)
            state["seen"] += 1
        return out

    return channel


def drop(frame: Frame) -> list[Frame]:
    return []


def twice(frame: Frame) -> list[Frame]:
    return [frame, frame]


def recording(kept: list[Frame]) -> Channel:
    """A perfect channel that keeps what passes."""

    def channel(frames: list[Frame]) -> list[Frame]:
        kept.extend(frames)
        return frames

    return channel


def transfer(pair: Pair, opcode: WrOpcode, nbytes: int = 5000) -> None:
    """One operation of ``nbytes`` from a, checked for status and bytes."""
    local, remote = pair.a.region(nbytes), pair.b.region(nbytes)
    source, target = (remote, local) if opcode == WrOpcode.RDMA_READ else (local, remote)
    source.data[:] = np.random.default_rng(3).integers(0, 256, nbytes, dtype=np.uint8)
    if opcode == WrOpcode.SEND:
        pair.b.recv(remote, nbytes)
    pair.a.send(opcode, local, nbytes, remote=remote)
    pair.run()
    assert [WcStatus(int(wc.status)) for wc in pair.a.poll()] == [WcStatus.SUCCESS]
    assert (source.data == target.data).all()
    assert target.guards_hold()
    assert len(pair.b.poll()) == (1 if opcode == WrOpcode.SEND else 0)


OPERATIONS = [WrOpcode.SEND, WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ]


@pytest.mark.parametrize("direction", ["to_a", "to_b"])
@pytest.mark.parametrize("act", [drop, twice])
@pytest.mark.parametrize("index", [0, 1, 7, 18, 19])
@pytest.mark.parametrize("opcode", OPERATIONS)
def test_any_single_packet_may_be_lost_or_repeated(
    opcode: WrOpcode, index: int, act: Callable[[Frame], list[Frame]], direction: str
) -> None:
    pair = Pair(MTU, OPTIONS)
    setattr(pair, direction, once(lambda seen, frame: seen == index, act))
    transfer(pair, opcode)


def test_a_gap_is_answered_by_one_nak_and_then_silence() -> None:
    pair = Pair(MTU, OPTIONS)
    pair.to_b = once(lambda seen, frame: seen == 3, drop)
    transfer(pair, WrOpcode.RDMA_WRITE)
    assert pair.a.engine.counters()["packet_seq_err"] == 1
    assert pair.b.engine.counters()["out_of_sequence"] > 1
    assert pair.a.engine.counters()["local_ack_timeout_err"] == 0


def test_a_lost_tail_is_found_by_the_timer() -> None:
    pair = Pair(MTU, OPTIONS)
    pair.to_b = once(lambda seen, frame: opcode_of(frame) == Opcode.RC_SEND_LAST, drop)
    transfer(pair, WrOpcode.SEND)
    assert pair.a.engine.counters()["local_ack_timeout_err"] == 1
    # Back to the last packet that asked for an acknowledgement, no further.
    assert 1 <= pair.a.engine.counters()["retransmitted_packets"] < 32


def test_a_lost_read_response_asks_only_for_what_is_missing() -> None:
    pair = Pair(MTU, OPTIONS)
    pair.to_a = once(lambda seen, frame: seen == 10, drop)
    requests: list[Frame] = []
    pair.to_b = recording(requests)
    transfer(pair, WrOpcode.RDMA_READ)
    reads = [frame for frame in requests if opcode_of(frame) == Opcode.RC_RDMA_READ_REQUEST]
    assert len(reads) == 2
    assert psn_of(reads[1]) - psn_of(reads[0]) == 10
    length = int.from_bytes(reads[1][0][24:28], "big")
    assert length == 5000 - 10 * MTU
    assert pair.a.engine.counters()["implied_nak_seq_err"] == 1


def test_a_repeated_read_restarts_with_a_first_packet() -> None:
    pair = Pair(MTU, OPTIONS)
    answers: list[Frame] = []

    def channel(frames: list[Frame]) -> list[Frame]:
        answers.extend(frames)
        return once(lambda seen, frame: seen == 10, drop)(frames) if len(answers) < 21 else frames

    pair.to_a = channel
    transfer(pair, WrOpcode.RDMA_READ)
    firsts = [f for f in answers if opcode_of(f) == Opcode.RC_RDMA_READ_RESPONSE_FIRST]
    assert len(firsts) == 2


def test_an_acknowledgement_behind_a_read_waits_for_its_data() -> None:
    """An ACK sent before READ data would tell the requester that the data was lost."""
    pair = Pair(MTU, OPTIONS)
    local, remote = pair.a.region(50_000), pair.b.region(50_000)
    answers: list[int] = []
    pair.to_a = lambda frames: answers.extend(map(opcode_of, frames)) or frames  # type: ignore[func-returns-value]
    pair.a.send(WrOpcode.RDMA_READ, local, 20_000, remote=remote)
    pair.a.send(WrOpcode.RDMA_WRITE, local, 100, remote=remote)
    pair.run()
    assert answers.index(Opcode.RC_ACKNOWLEDGE) > answers.index(Opcode.RC_RDMA_READ_RESPONSE_LAST)
    assert pair.a.engine.counters()["retransmitted_packets"] == 0


def test_a_repeated_write_is_acknowledged_with_all_that_is_executed() -> None:
    """A stale WRITE must not be answered with its own PSN (linux 4e4c53df5677)."""
    pair = Pair(MTU, OPTIONS)
    local, remote = pair.a.region(MTU), pair.b.region(MTU)
    kept: list[Frame] = []
    pair.to_b = recording(kept)
    for _ in range(3):
        pair.a.send(WrOpcode.RDMA_WRITE, local, MTU, remote=remote)
        pair.run()
    remote.data[:] = 9
    pair.b.receive(kept[0], pair.now)
    (answer,) = pair.b.transmit(pair.now)
    assert opcode_of(answer) == Opcode.RC_ACKNOWLEDGE
    assert psn_of(answer) == psn_of(kept[2])
    assert (remote.data == 9).all(), "a repeated WRITE must not be executed again"


def test_a_repeated_read_is_checked_again() -> None:
    """Its region may have been deregistered since (linux rxe replayed with a dead region)."""
    pair = Pair(MTU, OPTIONS)
    local, remote = pair.a.region(MTU), pair.b.region(MTU)
    kept: list[Frame] = []
    pair.to_b = recording(kept)
    pair.a.send(WrOpcode.RDMA_READ, local, MTU, remote=remote)
    pair.run()
    pair.b.engine.regions.deregister(remote.key)
    pair.b.receive(kept[0], pair.now)
    (answer,) = pair.b.transmit(pair.now)
    assert opcode_of(answer) == Opcode.RC_ACKNOWLEDGE
    assert answer[0][12] == 0x62


def test_repeated_reads_never_crowd_out_a_new_one() -> None:
    """The network may bring old READ requests in any number, just before new ones."""
    options = QpOptions(ack_timeout_code=8, max_rd_atomic=4)
    pair = Pair(MTU, options)
    local, remote = pair.a.region(200 * MTU), pair.b.region(200 * MTU)
    remote.data[:] = np.random.default_rng(3).integers(0, 256, 200 * MTU, dtype=np.uint8)
    old: list[Frame] = []
    pair.to_b = recording(old)
    for index in range(100):
        pair.a.send(
            WrOpcode.RDMA_READ,
            local,
            MTU,
            remote=remote,
            offset=index * MTU,
            remote_offset=index * MTU,
        )
    pair.run()
    assert len(pair.a.poll()) == 100
    pair.to_b = lambda frames: old + frames
    for index in range(100, 104):
        pair.a.send(
            WrOpcode.RDMA_READ,
            local,
            MTU,
            remote=remote,
            offset=index * MTU,
            remote_offset=index * MTU,
        )
    pair.step()
    pair.to_b = list
    pair.run()
    assert [WcStatus(int(wc.status)) for wc in pair.a.poll()] == [WcStatus.SUCCESS] * 4
    assert (local.data[: 104 * MTU] == remote.data[: 104 * MTU]).all()
    assert pair.b.state == QpState.RTS


def test_more_reads_than_agreed_are_refused() -> None:
    pair = Pair(MTU, QpOptions(ack_timeout_code=8, max_rd_atomic=4))
    pair.b.engine.qps.table[pair.b.qp].max_dest_rd_atomic = 2
    local, remote = pair.a.region(MTU), pair.b.region(MTU)
    for _ in range(4):
        pair.a.send(WrOpcode.RDMA_READ, local, MTU, remote=remote)
    pair.run()
    statuses = [WcStatus(int(wc.status)) for wc in pair.a.poll()]
    assert WcStatus.REM_INV_REQ_ERR in statuses
    assert pair.b.engine.counters()["resp_invalid_request"] == 1


def test_ghost_acknowledgements_complete_nothing() -> None:
    pair = Pair(MTU, OPTIONS)
    local, remote = pair.a.region(MTU), pair.b.region(MTU)
    answers: list[Frame] = []
    pair.to_a = recording(answers)
    pair.a.send(WrOpcode.RDMA_WRITE, local, MTU, remote=remote)
    pair.run()
    assert len(pair.a.poll()) == 1
    pair.to_b = lambda frames: []
    pair.a.send(WrOpcode.RDMA_WRITE, local, MTU, remote=remote)
    pair.step()
    for frame in answers:
        pair.a.receive(frame, pair.now)
    assert pair.a.poll() == []


def test_progress_gives_all_retries_back() -> None:
    """Loss spread over a long transfer must not add up to a dead connection."""
    pair = Pair(MTU, QpOptions(ack_timeout_code=8, retry_count=3))
    pair.to_b = LossyChannel(seed=5, drop=0.15, duplicate=0, reorder=0, corrupt=0)
    transfer(pair, WrOpcode.RDMA_WRITE, 50_000)
    counters = pair.a.engine.counters()
    assert counters["packet_seq_err"] + counters["local_ack_timeout_err"] > 10


def test_no_timer_stays_armed_when_all_is_acknowledged() -> None:
    pair = Pair(MTU, OPTIONS)
    for opcode in OPERATIONS:
        transfer(pair, opcode)
        assert pair.a.engine.next_deadline() >= 1 << 61
    assert pair.a.state == QpState.RTS


def test_the_window_bounds_what_is_unacknowledged() -> None:
    pair = Pair(MTU, OPTIONS)
    pair.a.engine.qps.table[pair.a.qp].window = 16
    local, remote = pair.a.region(100_000), pair.b.region(100_000)
    pair.to_b = lambda frames: []
    pair.a.send(WrOpcode.RDMA_WRITE, local, 100_000, remote=remote)
    sent = [len(pair.a.transmit(0)) for _ in range(5)]
    assert sum(sent) == 16


def test_packets_out_of_order_cost_no_timer() -> None:
    """The NAK for the gap is cancelled when the gap closes; what was dropped is asked for."""
    pair = Pair(MTU, OPTIONS)

    def swap_the_last_two(frames: list[Frame]) -> list[Frame]:
        return [*frames[:-2], frames[-1], frames[-2]] if len(frames) > 2 else frames

    pair.to_b = swap_the_last_two
    transfer(pair, WrOpcode.RDMA_WRITE, 3 * MTU)
    assert pair.a.engine.counters()["local_ack_timeout_err"] == 0
    assert pair.a.engine.counters()["packet_seq_err"] == 1


def test_a_repeated_read_is_answered_before_later_ones() -> None:
    """Else the later ones are sent in vain, and the timer has to ask for them once more."""
    pair = Pair(MTU, OPTIONS)
    local, remote = pair.a.region(400 * MTU), pair.b.region(400 * MTU)
    remote.data[:] = np.random.default_rng(1).integers(0, 256, 400 * MTU, dtype=np.uint8)
    half = 200 * MTU
    pair.to_a = once(lambda seen, frame: seen == 199, drop)
    pair.a.send(WrOpcode.RDMA_READ, local, half, remote=remote)
    pair.a.send(WrOpcode.RDMA_READ, local, half, remote=remote, offset=half, remote_offset=half)
    pair.run()
    assert [WcStatus(int(wc.status)) for wc in pair.a.poll()] == [WcStatus.SUCCESS] * 2
    assert (local.data == remote.data).all()
    assert pair.a.engine.counters()["local_ack_timeout_err"] == 0


def test_a_stray_repetition_of_a_read_does_not_end_the_connection() -> None:
    pair = Pair(MTU, OPTIONS)
    local, remote = pair.a.region(MTU), pair.b.region(MTU)
    kept: list[Frame] = []
    pair.to_b = recording(kept)
    pair.a.send(WrOpcode.RDMA_READ, local, MTU, remote=remote)
    pair.run()
    pair.b.engine.regions.deregister(remote.key)
    pair.b.receive(kept[0], pair.now)
    pair.run()
    assert pair.a.state == pair.b.state == QpState.RTS
    pair.a.poll()
    transfer(pair, WrOpcode.SEND)


@pytest.mark.parametrize("length", [MTU + 1, 1 << 31, 0xFFFFFFFF])
def test_a_repeated_read_that_asks_for_more_is_dropped(length: int) -> None:
    """Whatever its length, a repetition does not end the connection (2^24 packets wrap)."""
    pair = Pair(MTU, OPTIONS)
    local, remote = pair.a.region(MTU), pair.b.region(MTU)
    kept: list[Frame] = []
    pair.to_b = recording(kept)
    pair.a.send(WrOpcode.RDMA_READ, local, MTU, remote=remote)
    pair.run()
    payload, descriptor = kept[0]
    forged = bytearray(payload)
    forged[24:28] = length.to_bytes(4, "big")
    pair.b.receive(reseal(forged, descriptor), pair.now)
    assert pair.b.transmit(pair.now) == []
    assert pair.b.state == QpState.RTS


def test_nobody_can_acknowledge_what_was_not_sent() -> None:
    pair = Pair(MTU, OPTIONS)
    local, remote = pair.a.region(1000 * MTU), pair.b.region(1000 * MTU)
    answers: list[Frame] = []
    pair.to_a = lambda frames: answers.extend(frames) or []  # type: ignore[func-returns-value]
    pair.a.send(WrOpcode.RDMA_WRITE, local, 1000 * MTU, remote=remote)
    pair.step()
    assert answers
    payload, descriptor = answers[0]
    far = (pair.a.first_psn + 999) & 0xFFFFFF
    forged = bytearray(payload)
    forged[9:12] = far.to_bytes(3, "big")
    pair.a.receive(reseal(forged, descriptor), pair.now)
    assert pair.a.poll() == []


def test_a_long_read_does_not_hold_back_a_send() -> None:
    pair = Pair(MTU, OPTIONS)
    local, remote = pair.a.region(400 * MTU), pair.b.region(400 * MTU)
    sent: list[int] = []
    pair.to_b = lambda frames: sent.extend(map(opcode_of, frames)) or []  # type: ignore[func-returns-value]
    pair.a.send(WrOpcode.RDMA_READ, local, 400 * MTU, remote=remote)
    pair.a.send(WrOpcode.SEND, local, 8)
    pair.step()
    assert sent == [Opcode.RC_RDMA_READ_REQUEST, Opcode.RC_SEND_ONLY]
