"""Held: blocks come back however the two ends batch their packets."""

from __future__ import annotations

import numpy as np
import pytest

import host_driver
from host_driver import DriverConfig, Namespace
from tests.support.driver_calls import chain, payload

MIB = 1 << 20


@pytest.mark.parametrize(
    ("agents", "hosts"),
    [("messages", "messages"), ("messages", "segments"), ("auto", "messages")],
)
@pytest.mark.parametrize("faults", ["", "drop=0.01,dup=0.01,reorder=0.01"])
async def test_blocks_come_back(agents: str, hosts: str, faults: str) -> None:
    """Of a MiB, so that bursts are full; and small, so that they are mixed."""
    target = f"emulated:?capacity=32MiB&block_bytes=1MiB&batching={agents}&faults={faults}&seed=7"
    config = DriverConfig(device_options={"batching": hosts}, verify_checksums=True)
    namespace = Namespace(name=f"batching-{agents}-{hosts}")
    async with await host_driver.connect(target, namespace=namespace, config=config) as dpu:
        for first_token, blocks in ((0, payload(8, MIB)), (1000, payload(20, 777))):
            keys = chain(dpu, len(blocks), first_token)
            assert (await dpu.store(keys, blocks)).ok.all()
            into = np.zeros_like(blocks)
            assert (await dpu.retrieve(keys, into)).ok.all()
            assert np.array_equal(into, blocks)
        assert dpu.counters()["link_lost_sending"] == 0


async def test_a_host_batches_as_the_agent_that_it_starts() -> None:
    async with await host_driver.connect(
        "emulated:?capacity=1MiB&batching=messages", namespace=Namespace(name="alike")
    ) as dpu:
        keys, blocks = chain(dpu, 3), payload(3)
        assert (await dpu.store(keys, blocks)).ok.all()
