"""ATOMIC WRITE and FLUSH over bad links: in order, once, and between everything else."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.wire.feth import Feth, Placement, Selectivity
from kvlane.verbs.enums import AccessFlags, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.roce_pair import ALL_ACCESS, LossyChannel, Pair
from tests.support.roce_work import part, post, statuses, towards, work, wr_ids

FLUSHABLE = ALL_ACCESS | AccessFlags.FLUSH_GLOBAL
WORDS = 3
KINDS = ("atomic write", "flush range", "flush region", "write", "add", "read")
FETHS = {
    "flush range": Feth(Placement.GLOBAL),
    "flush region": Feth(Placement.GLOBAL, Selectivity.REGION),
}


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1 << 30),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=24),
    places=st.lists(st.integers(0, WORDS - 1), min_size=24, max_size=24),
    depth=st.integers(1, 4),
)
def test_each_takes_effect_once_and_in_its_turn(
    seed: int, kinds: list[str], places: list[int], depth: int
) -> None:
    """Words that all operations share hold, in the end, what they would one after another."""
    options = QpOptions(max_send_wr=64, max_rd_atomic=depth, ack_timeout_code=8)
    pair = Pair(256, options)
    for port in (pair.a, pair.b):
        table = port.engine.qps.table[port.qp]
        table.access = int(FLUSHABLE)
        table.retry_count = table.retries_left = 1_000
    pair.to_b = LossyChannel(seed, 0.1, 0.1, 0.1, 0.05)
    pair.to_a = LossyChannel(seed + 1, 0.1, 0.1, 0.1, 0.05)
    local, remote = pair.a.region(8 * len(kinds)), pair.b.region(8 * WORDS, FLUSHABLE)
    words = local.data.view(np.uint64)
    expected = np.zeros(WORDS, np.uint64)
    read: dict[int, int] = {}
    for number, kind in enumerate(kinds):
        place = places[number]
        here, there = [part(local, 8 * number, 8)], towards(remote, 8 * place)
        words[number] = value = (number + 1) * 0x0101_0101_0101
        if kind in FETHS:
            feth = FETHS[kind].word
            request = work(WrOpcode.FLUSH, feth=feth, flush_length=8, wr_id=number, **there)
        elif kind == "read":
            read[number] = int(expected[place])
            request = work(WrOpcode.RDMA_READ, here, wr_id=number, **there)
        elif kind == "add":
            read[number] = int(expected[place])
            opcode = WrOpcode.ATOMIC_FETCH_AND_ADD
            request = work(opcode, here, wr_id=number, compare_add=5, **there)
            expected[place] += np.uint64(5)
        else:
            opcode = WrOpcode.RDMA_WRITE if kind == "write" else WrOpcode.ATOMIC_WRITE
            request = work(opcode, here, wr_id=number, **there)
            expected[place] = value
        post(pair.a, request)
    pair.run()
    done = pair.a.poll()
    assert wr_ids(done) == list(range(len(kinds)))
    assert set(statuses(done)) == {WcStatus.SUCCESS}
    assert remote.data.view(np.uint64).tolist() == expected.tolist()
    assert {number: int(words[number]) for number in read} == read
