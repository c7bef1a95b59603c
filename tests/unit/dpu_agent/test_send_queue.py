"""The send queue never overfills a queue pair, keeps the order, and loses nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.data.send_queue import SendQueue
from kvlane.verbs.enums import AccessFlags, SendFlags, WrOpcode
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import SEND_WR, WC, new_records
from tests.support.loopback_verbs import LoopbackFabric, connect


@given(st.integers(1, 9), st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_batches_of_any_size_pass_a_queue_of_any_depth(depth: int, sizes: list[int]) -> None:
    fabric = LoopbackFabric(devices=2)
    near, far = fabric.devices
    cq = near.create_cq(64)
    qp = near.create_qp(cq, QpOptions(max_send_wr=depth))
    connect([qp, far.create_qp(far.create_cq(64), QpOptions())])
    total = max(sum(sizes), depth)
    source = near.register(np.arange(1, total + 1, dtype=np.uint8), AccessFlags.LOCAL_WRITE)
    target = np.zeros(total, np.uint8)
    remote = far.register(target, AccessFlags.REMOTE_WRITE)
    queue = SendQueue(qp, depth)

    def submit(start: int, size: int) -> None:
        batch = new_records(SEND_WR, size)
        batch["wr_id"] = np.arange(start, start + size)
        batch["opcode"] = WrOpcode.RDMA_WRITE
        batch["local_addr"] = source.addr + np.arange(start, start + size)
        batch["remote_addr"] = remote.addr + np.arange(start, start + size)
        batch["length"] = 1
        batch["lkey"], batch["rkey"] = source.lkey, remote.rkey
        batch["send_flags"][-1] = SendFlags.SIGNALED
        queue.submit(batch)

    for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        submit(int(start), size)
    seen: list[int] = []
    out = new_records(WC, 1)
    while fabric.progress():
        while cq.poll(out):
            seen.append(int(out["wr_id"][0]))
            queue.retire()
    assert target.tolist()[: sum(sizes)] == list(range(1, sum(sizes) + 1))
    assert seen == sorted(seen)
    assert set(np.cumsum(sizes) - 1) <= set(seen)
    # All is retired, so the whole queue is to be had again.
    submit(0, depth)
    assert qp.sq_used == depth
