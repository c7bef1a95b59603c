"""A peer that writes what it likes into the memory it shares: nothing of ours is touched."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from emulator.pcie.device import PcieDevice
from emulator.pcie.layout import (
    CHANNEL_BYTES,
    CHANNEL_HEAD,
    CHANNEL_RING,
    CHANNEL_SENDER_FAILED,
    CHANNEL_TAIL,
    CHANNEL_VERDICT,
    FRAGMENT_BYTES,
    LANDING_BYTES,
    RING_BYTES,
    RING_HEADER_BYTES,
    FragmentKind,
)
from kvlane.verbs.enums import AccessFlags, QpState, WcStatus, WrOpcode
from tests.support.pcie_ends import End, Place, not_permitted
from tests.unit.emulator.test_pcie_ranges import WORDS

_ROOM_BYTES = 4096
_GUARD = 0xA5
_TURNS = 64
"""Calls of progress after which a device with one small queue pair has nothing left to do."""

_KINDS = st.one_of(
    st.sampled_from(
        [WrOpcode.SEND, WrOpcode.SEND_WITH_IMM, WrOpcode.RDMA_WRITE_WITH_IMM, *FragmentKind]
    ),
    WORDS,
)
_LENGTHS = st.one_of(
    st.integers(0, 2 * _ROOM_BYTES),
    st.sampled_from([-1, FRAGMENT_BYTES, FRAGMENT_BYTES + 1, RING_BYTES, LANDING_BYTES + 1]),
    WORDS,
)
_FRAGMENTS = st.lists(st.tuples(_KINDS, _LENGTHS, _LENGTHS, WORDS, st.booleans()), max_size=6)
_TAILS = st.one_of(
    st.just(None), st.integers(-64, 64), st.sampled_from([RING_BYTES, RING_BYTES + 32]), WORDS
)


class Victim:
    """A device whose peer's side of the channel the test writes itself."""

    def __init__(self, *, is_reached: bool = True) -> None:
        self.peer = End(PcieDevice())
        self.end = End(PcieDevice() if is_reached else PcieDevice(not_permitted))
        theirs, ours = self.peer.open_qp(), self.end.open_qp(max_recv_wr=4)
        self.peer.connect(0, ours)
        self.end.connect(0, theirs)
        self.guarded = self.end.alloc("guarded", 3 * _ROOM_BYTES)
        self.end.fill("guarded", bytes([_GUARD]) * 3 * _ROOM_BYTES)
        memory = self.end.memory("guarded")[_ROOM_BYTES : 2 * _ROOM_BYTES]
        region = self.end.device.register(memory, AccessFlags.LOCAL_WRITE)
        self.room = Place(region.addr, region.length, region.lkey)
        region = self.end.device.register(
            memory, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE
        )
        self.remote_room = Place(region.addr, region.length, region.rkey)
        self.end.receive(0, self.room, 4)
        for _ in range(_TURNS):
            self.peer.device.progress()
            self.end.device.progress()

    def inbound(self) -> NDArray[np.int64]:
        """The channel that the peer writes."""
        return self.end.channel(0)

    def outbound(self) -> NDArray[np.int64]:
        """The channel whose head and verdict the peer writes."""
        return self.peer.channel(0)

    def drive(self) -> None:
        """Let the victim work, alone, until it has nothing to do."""
        for _ in range(_TURNS):
            if not self.end.device.progress():
                return
        raise AssertionError("the device does not come to rest")

    def is_intact(self) -> bool:
        """Whether nothing beside the room was written."""
        content = self.end.memory("guarded")
        return bool(
            (content[:_ROOM_BYTES] == _GUARD).all() and (content[2 * _ROOM_BYTES :] == _GUARD).all()
        )

    def close(self) -> None:
        self.end.close()
        self.peer.close()


def write_fragments(
    victim: Victim, fragments: list[tuple[int, int, int, int, bool]], tail: int | None
) -> None:
    """Put fragments where a sender would, and the tail behind them, or somewhere else."""
    words = victim.inbound()
    at = 0
    for kind, total, nbytes, imm, names_room in fragments:
        if at + 8 > RING_BYTES // 8:
            break
        place = CHANNEL_RING // 8 + at
        if names_room and kind in tuple(FragmentKind):
            total = victim.remote_room.addr + total % (2 * _ROOM_BYTES)
            imm = victim.remote_room.key
        words[place : place + 4] = kind, total, nbytes, imm
        words[place + 4] = imm % (2 * LANDING_BYTES)
        believed = min(max(nbytes, 0), FRAGMENT_BYTES)
        at += (RING_HEADER_BYTES + -(-believed // RING_HEADER_BYTES) * RING_HEADER_BYTES) // 8
    words[CHANNEL_TAIL // 8] = 8 * at if tail is None else tail


_SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_SETTINGS
@given(fragments=_FRAGMENTS, tail=_TAILS)
def test_fragments_that_cannot_be(
    fragments: list[tuple[int, int, int, int, bool]], tail: int | None
) -> None:
    victim = Victim()
    try:
        write_fragments(victim, fragments, tail)
        victim.drive()
        assert victim.is_intact()
        if tail is not None and (tail < 0 or tail > RING_BYTES or tail % RING_HEADER_BYTES):
            assert victim.end.state(0) == QpState.ERR
    finally:
        victim.close()


@_SETTINGS
@given(content=st.binary(min_size=1, max_size=2048), tail=_TAILS)
def test_bytes_of_any_kind(content: bytes, tail: int | None) -> None:
    victim = Victim()
    try:
        channel = victim.inbound().view(np.uint8)
        channel[CHANNEL_RING : CHANNEL_RING + len(content)] = np.frombuffer(content, np.uint8)
        units = -(-len(content) // RING_HEADER_BYTES)
        victim.inbound()[CHANNEL_TAIL // 8] = units * RING_HEADER_BYTES if tail is None else tail
        victim.drive()
        assert victim.is_intact()
    finally:
        victim.close()


@_SETTINGS
@given(
    head=st.one_of(st.integers(-64, 200), WORDS),
    verdict=st.one_of(st.just(0), st.integers(0, 20), WORDS),
    failed=st.one_of(st.just(0), WORDS),
    opcode=st.sampled_from([WrOpcode.SEND, WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ]),
    is_reached=st.booleans(),
)
def test_words_about_what_was_sent(
    head: int, verdict: int, failed: int, opcode: WrOpcode, is_reached: bool
) -> None:
    victim = Victim(is_reached=is_reached)
    try:
        borrowed = victim.peer.borrow("borrowed", _ROOM_BYTES)
        victim.end.request(0, opcode, victim.room, borrowed)
        victim.outbound()[CHANNEL_HEAD // 8] = head
        victim.outbound()[CHANNEL_VERDICT // 8] = verdict
        victim.inbound()[CHANNEL_SENDER_FAILED // 8] = failed
        victim.drive()
        assert victim.is_intact()
        bounced = not is_reached and opcode is not WrOpcode.SEND
        if opcode is WrOpcode.SEND or bounced:  # all else is done when it is posted
            sent = int(victim.outbound()[CHANNEL_TAIL // 8])
            if verdict or failed or not 0 <= head <= sent:
                assert victim.end.state(0) == QpState.ERR
    finally:
        victim.close()


@pytest.fixture
def victim() -> Iterator[Victim]:
    made = Victim()
    yield made
    made.close()


@pytest.mark.parametrize("nbytes", [-1, FRAGMENT_BYTES + 1, 1 << 40, -(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("kind", [WrOpcode.SEND, *FragmentKind])
def test_an_impossible_length_fails_the_queue_pair(victim: Victim, kind: int, nbytes: int) -> None:
    write_fragments(victim, [(kind, 64, nbytes, 0, True)], 64)
    victim.drive()
    assert victim.end.state(0) == QpState.ERR
    assert victim.outbound()[CHANNEL_VERDICT // 8] == 0
    assert victim.inbound()[CHANNEL_VERDICT // 8] == WcStatus.REM_INV_REQ_ERR


def test_a_put_in_the_midst_of_a_message_is_taken_for_its_bytes(victim: Victim) -> None:
    put = (FragmentKind.PUT, 0, 32, 0, True)
    write_fragments(victim, [(WrOpcode.SEND, 64, 32, 0, False), put], None)
    victim.drive()
    # What kind a later fragment is of does not matter, so its bytes belong to the message.
    done = victim.end.completions(1)
    assert (done[0].status, done[0].byte_len) == (WcStatus.SUCCESS, 64)
    assert victim.is_intact()


@pytest.mark.parametrize("offset", [-1, 1, _ROOM_BYTES, -_ROOM_BYTES])
@pytest.mark.parametrize("kind", FragmentKind)
def test_a_put_beyond_its_region_is_refused(victim: Victim, kind: int, offset: int) -> None:
    words = victim.inbound()
    at = CHANNEL_RING // 8
    addr, _, key = victim.remote_room
    nbytes = _ROOM_BYTES if kind == FragmentKind.PUT else 8
    words[at : at + 4] = kind, addr + offset, nbytes, key
    words[at + 4] = _ROOM_BYTES
    words[CHANNEL_TAIL // 8] = RING_HEADER_BYTES + -(-nbytes // 32) * 32
    victim.drive()
    assert victim.inbound()[CHANNEL_VERDICT // 8] == WcStatus.REM_ACCESS_ERR
    assert victim.is_intact()


def test_a_wish_larger_than_the_landing_is_refused(victim: Victim) -> None:
    words = victim.inbound()
    at = CHANNEL_RING // 8
    addr, _, key = victim.remote_room
    words[at : at + 5] = FragmentKind.GET, addr, 8, key, LANDING_BYTES + 1
    words[CHANNEL_TAIL // 8] = 64
    victim.drive()
    assert victim.inbound()[CHANNEL_VERDICT // 8] == WcStatus.REM_INV_REQ_ERR
    assert victim.inbound().nbytes == CHANNEL_BYTES


def test_one_bad_message_fails_one_receive_and_flushes_the_others(victim: Victim) -> None:
    write_fragments(victim, [(WrOpcode.SEND, _ROOM_BYTES + 1, 32, 0, False)], 64)
    victim.drive()
    status = [done.status for done in victim.end.completions(4)]
    assert status == [WcStatus.LOC_LEN_ERR, *[WcStatus.WR_FLUSH_ERR] * 3]
