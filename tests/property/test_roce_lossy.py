"""Over a link that drops, repeats, reorders and corrupts, everything completes once, right."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlane.jit import JIT_ENABLED
from kvlane.verbs.enums import WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.roce_pair import LossyChannel, Pair

# 25 operations each way: 10,000 operations in a run, fewer when every packet is interpreted.
EXAMPLES = 200 if JIT_ENABLED else 6
OPERATIONS = 25
SLOT = 3000

odds = st.floats(0, 0.2)


@settings(max_examples=EXAMPLES)
@given(
    seed=st.integers(0, 2**32),
    drop=odds,
    duplicate=odds,
    reorder=odds,
    corrupt=odds,
    mtu=st.sampled_from([256, 1024, 4096]),
    first_psn=st.sampled_from([0, 0xFFFFF0, 0x7FFFF0, None]),
)
def test_everything_completes_once_in_order_with_the_right_bytes(
    seed: int,
    drop: float,
    duplicate: float,
    reorder: float,
    corrupt: float,
    mtu: int,
    first_psn: int | None,
) -> None:
    options = QpOptions(
        ack_timeout_code=6, retry_count=7, max_send_wr=64, max_recv_wr=64, max_rd_atomic=4
    )
    pair = Pair(mtu, options, first_psn)
    # Long runs of bad luck are part of the exercise; a dead connection is not.
    for port in (pair.a, pair.b):
        port.engine.qps.table[port.qp].retry_count = port.engine.qps.table[port.qp].retries_left = (
            10_000
        )
    rng = random.Random(seed)
    pair.to_a = LossyChannel(rng.getrandbits(32), drop, duplicate, reorder, corrupt)
    pair.to_b = LossyChannel(rng.getrandbits(32), drop, duplicate, reorder, corrupt)
    ends = [(pair.a, pair.b), (pair.b, pair.a)]
    expected = []
    for number, (port, peer) in enumerate(ends):
        local, remote, inbox = port.region(OPERATIONS * SLOT), peer.region(OPERATIONS * SLOT), None
        inbox = peer.region(OPERATIONS * SLOT)
        fill = np.random.default_rng(number)
        local.data[:] = fill.integers(0, 256, len(local.data), dtype=np.uint8)
        remote.data[:] = fill.integers(0, 256, len(remote.data), dtype=np.uint8)
        local_want, remote_want = local.data.copy(), remote.data.copy()
        sends = []
        for i in range(OPERATIONS):
            opcode = rng.choice([WrOpcode.SEND, WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
            length = rng.choice([0, 1, rng.randrange(SLOT), SLOT])
            part = slice(i * SLOT, i * SLOT + length)
            if opcode == WrOpcode.SEND:
                sends.append((len(sends), local_want[part].copy()))
                peer.recv(inbox, SLOT, wr_id=1000 + len(sends) - 1, offset=(len(sends) - 1) * SLOT)
            elif opcode == WrOpcode.RDMA_WRITE:
                remote_want[part] = local_want[part]
            else:
                local_want[part] = remote_want[part]
            place = i * SLOT
            port.send(
                opcode, local, length, remote=remote, wr_id=i, offset=place, remote_offset=place
            )
        expected.append((local, local_want, remote, remote_want, inbox, sends))
    pair.run()
    done = {id(port): port.poll() for port, _ in ends}
    for (port, peer), (local, local_want, remote, remote_want, inbox, sends) in zip(
        ends, expected, strict=True
    ):
        sent = [int(wc.wr_id) for wc in done[id(port)] if wc.opcode < 128]
        assert sent == list(range(OPERATIONS))
        assert {int(wc.status) for wc in done[id(port)]} == {WcStatus.SUCCESS}
        arrived = [wc for wc in done[id(peer)] if wc.opcode >= 128]
        assert [int(wc.wr_id) for wc in arrived] == [1000 + number for number, _ in sends]
        for wc, (number, data) in zip(arrived, sends, strict=True):
            assert wc.byte_len == len(data)
            assert (inbox.data[number * SLOT : number * SLOT + len(data)] == data).all()
        assert (local.data == local_want).all()
        assert (remote.data == remote_want).all()
        assert local.guards_hold()
        assert remote.guards_hold()
        assert inbox.guards_hold()
