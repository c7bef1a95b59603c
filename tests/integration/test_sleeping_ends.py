"""Held: agent and host that sleep whenever they can miss nothing, however many commands fly."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import host_driver
from host_driver import Dpu, DriverConfig, Namespace
from tests.support.driver_calls import chain, payload

_TASKS = 8
_TURNS = 40
_BLOCKS = 3


async def _use(dpu: Dpu, task: int) -> None:
    """Store, look up, retrieve and delete, with short waits in between that let everybody sleep."""
    for turn in range(_TURNS):
        keys, blocks = (
            chain(dpu, _BLOCKS, first_token=100_000 * task + 100 * turn),
            payload(_BLOCKS),
        )
        assert (await dpu.store(keys, blocks)).ok.all()
        assert await dpu.match(keys) == _BLOCKS
        into = np.zeros_like(blocks)
        assert (await dpu.retrieve(keys, into)).ok.all()
        assert np.array_equal(into, blocks)
        if turn % 4 == task % 4:
            await asyncio.sleep(0.001)
        assert not (await dpu.delete(keys)).any()


@pytest.mark.parametrize("link", ["pcie", "udp"])
async def test_nobody_is_left_asleep(link: str) -> None:
    target = f"emulated:?capacity=8MiB&link={link}&spin_us=0"
    config = DriverConfig(spin_us=0, queue_depth=4)
    async with await host_driver.connect(
        target, namespace=Namespace(name="sleepers"), config=config
    ) as dpu:
        await asyncio.gather(*(_use(dpu, task) for task in range(_TASKS)))
