"""An agent whose blocks go to files before they would be evicted, and come back from there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

import host_driver
from dpu_agent.tiers.demotion import reserve_blocks
from host_driver import Dpu, DriverConfig, KeyStatus, Namespace
from tests.support.agent_process import AgentProcess
from tests.support.cold_payloads import numbers
from tests.support.driver_calls import PATIENCE_S, chain, payload

BLOCK_BYTES = 32 << 10
HOT_BLOCKS = 64
BLOCKS = 4 * HOT_BLOCKS
BATCH = reserve_blocks(HOT_BLOCKS)
"""As many as find free slots when nothing is on its way."""


def agent_over(folder: Path, link: str = "udp", *options: str) -> AgentProcess:
    folder.mkdir(exist_ok=True)
    return AgentProcess(
        f"--link={link}",
        f"--capacity={HOT_BLOCKS * BLOCK_BYTES}",
        f"--block-bytes={BLOCK_BYTES}",
        f"--nvme={folder}",
        "--nvme-capacity=32MiB",
        "--nvme-segment=2MiB",
        *options,
    )


async def connected(agent: AgentProcess, link: str = "udp") -> Dpu:
    config = DriverConfig(verify_checksums=True, device_options={"link": link})
    return await host_driver.connect(
        agent.control, namespace=Namespace(name="tiers"), config=config
    )


async def store_slowly(dpu: Dpu, keys: list[bytes], blocks: np.ndarray) -> None:
    """A few at a time, each when there is room without evicting anything."""
    for first in range(0, len(keys), BATCH):
        part = slice(first, first + BATCH)
        await until_there_is_room(dpu)
        assert (await dpu.store(keys[part], blocks[part])).ok.all()


async def until_there_is_room(dpu: Dpu) -> None:
    """For a few blocks more."""
    deadline = time.monotonic() + PATIENCE_S
    while (await dpu.stats()).store.blocks > HOT_BLOCKS - BATCH:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def count_right(dpu: Dpu, keys: list[bytes], blocks: np.ndarray) -> int:
    """Retrieve all, a few at a time; how many came, every one of which is right."""
    came = 0
    for first in range(0, len(keys), BATCH):
        part = slice(first, first + BATCH)
        await until_there_is_room(dpu)
        into = np.zeros_like(blocks[part])
        ok = (await dpu.retrieve(keys[part], into)).ok
        assert np.array_equal(into[ok], blocks[part][ok])
        came += int(ok.sum())
    return came


@pytest.mark.parametrize("link", ["udp", "pcie"])
async def test_more_blocks_than_memory_holds_come_back(tmp_path: Path, link: str) -> None:
    with agent_over(tmp_path / "nvme", link) as agent:
        async with await connected(agent, link) as dpu:
            keys, blocks = chain(dpu, BLOCKS), payload(BLOCKS, BLOCK_BYTES)
            await store_slowly(dpu, keys, blocks)
            assert await dpu.match(keys) == BLOCKS
            assert await count_right(dpu, keys, blocks) == BLOCKS
            assert await count_right(dpu, keys, blocks) == BLOCKS


async def test_one_retrieve_spans_memory_and_files(tmp_path: Path) -> None:
    with agent_over(tmp_path / "nvme") as agent:
        async with await connected(agent) as dpu:
            keys, blocks = chain(dpu, BLOCKS), payload(BLOCKS, BLOCK_BYTES)
            await store_slowly(dpu, keys, blocks)
            rows = [0, BLOCKS - 1, 1, BLOCKS - 2]
            into = np.zeros_like(blocks[rows])
            assert (await dpu.retrieve([keys[row] for row in rows], into)).ok.all()
            assert np.array_equal(into, blocks[rows])


async def test_many_hosts_ask_for_the_same_cold_blocks_at_once(tmp_path: Path) -> None:
    with agent_over(tmp_path / "nvme") as agent:
        hosts = [await connected(agent) for _ in range(3)]
        keys, blocks = chain(hosts[0], BLOCKS), payload(BLOCKS, BLOCK_BYTES)
        await store_slowly(hosts[0], keys, blocks)
        cold = slice(0, BATCH)
        targets = [np.zeros_like(blocks[cold]) for _ in hosts]
        results = await asyncio.gather(
            *(h.retrieve(keys[cold], into) for h, into in zip(hosts, targets, strict=True))
        )
        for result, into in zip(results, targets, strict=True):
            assert result.ok.all()
            assert np.array_equal(into, blocks[cold])
        for host in hosts:
            await host.close()


async def test_what_is_deleted_is_gone_from_the_files_too(tmp_path: Path) -> None:
    folder = tmp_path / "nvme"
    with agent_over(folder) as agent:
        async with await connected(agent) as dpu:
            keys, blocks = chain(dpu, BLOCKS), payload(BLOCKS, BLOCK_BYTES)
            await store_slowly(dpu, keys, blocks)
            assert not (await dpu.delete(keys[:BATCH])).any()
            assert (await dpu.exist(keys[:BATCH])).sum() == 0
            assert await count_right(dpu, keys[:BATCH], blocks[:BATCH]) == 0
        agent.process.kill()
    with agent_over(folder) as agent:
        async with await connected(agent) as dpu:
            assert await count_right(dpu, keys[:BATCH], blocks[:BATCH]) == 0


@pytest.mark.parametrize("is_killed", [False, True])
async def test_files_are_found_again_after_a_restart(tmp_path: Path, is_killed: bool) -> None:
    folder = tmp_path / "nvme"
    with agent_over(folder) as agent:
        async with await connected(agent) as dpu:
            keys, blocks = chain(dpu, BLOCKS), payload(BLOCKS, BLOCK_BYTES)
            await store_slowly(dpu, keys, blocks)
        if is_killed:
            agent.process.kill()
        else:
            assert agent.end()[0] == 0
    with agent_over(folder) as agent:
        async with await connected(agent) as dpu:
            assert await count_right(dpu, keys, blocks) >= BLOCKS - HOT_BLOCKS


@pytest.mark.parametrize("link", ["udp", "pcie"])
async def test_blocks_lie_compressed_where_that_makes_them_shorter(
    tmp_path: Path, link: str
) -> None:
    folder = tmp_path / "nvme"
    with agent_over(folder, link, "--set=nvme.compression=zstd") as agent:
        async with await connected(agent, link) as dpu:
            keys, blocks = chain(dpu, BLOCKS), payload(BLOCKS, BLOCK_BYTES)
            blocks[::2] = numbers(1, BLOCK_BYTES)
            await store_slowly(dpu, keys, blocks)
            assert await count_right(dpu, keys, blocks) == BLOCKS
            counters = (await dpu.stats()).device_counters
            assert counters["nvme_compressed"] > HOT_BLOCKS
            assert counters["nvme_stored_raw"] > HOT_BLOCKS
            assert counters["nvme_decompressed"] > 0
            assert counters["nvme_damaged"] == 0
            assert counters["nvme_plain_bytes"] > 1.15 * counters["nvme_stored_bytes"]
            assert counters["nvme_user_bytes"] == counters["nvme_stored_bytes"]
        agent.process.kill()
    with agent_over(folder, link) as agent:
        async with await connected(agent, link) as dpu:
            assert await count_right(dpu, keys, blocks) >= BLOCKS - HOT_BLOCKS
            assert (await dpu.stats()).device_counters["nvme_decompressed"] > 0


async def test_a_full_tier_keeps_what_came_last(tmp_path: Path) -> None:
    folder = tmp_path / "nvme"
    with agent_over(folder, "udp", "--nvme-capacity=16MiB") as agent:
        async with await connected(agent) as dpu:
            count = 4 * (16 << 20) // BLOCK_BYTES
            keys, blocks = chain(dpu, count), payload(count, BLOCK_BYTES)
            await store_slowly(dpu, keys, blocks)
            there = await dpu.exist(keys)
            counters = (await dpu.stats()).device_counters
            assert counters["nvme_evicted"] > 0
            assert there[: count // 4].sum() == 0
            assert there[-count // 4 :].sum() > HOT_BLOCKS


def test_two_agents_do_not_share_a_directory(tmp_path: Path) -> None:
    with agent_over(tmp_path / "nvme"), pytest.raises(AssertionError, match="did not start"):
        agent_over(tmp_path / "nvme").__enter__()


async def test_what_was_acknowledged_as_persistent_survives_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "nvme"
    with agent_over(folder) as agent:
        async with await connected(agent) as dpu:
            keys, blocks = chain(dpu, HOT_BLOCKS // 2), payload(HOT_BLOCKS // 2, BLOCK_BYTES)
            assert (await dpu.store(keys, blocks, persistent=True)).ok.all()
            assert (await dpu.store(keys[:3], blocks[:3], persistent=True)).ok.all()
            agent.process.kill()
    with agent_over(folder) as agent:
        async with await connected(agent) as dpu:
            assert await dpu.match(keys) == len(keys)
            assert await count_right(dpu, keys, blocks) == len(keys)


async def tier_counter(dpu: Dpu, name: str) -> int:
    return int(dict((await dpu.stats()).device_counters)[f"nvme_{name}"])


async def test_a_match_brings_cold_blocks_back_before_they_are_asked_for(tmp_path: Path) -> None:
    with agent_over(tmp_path / "nvme") as agent:
        async with await connected(agent) as dpu:
            keys, blocks = chain(dpu, BLOCKS), payload(BLOCKS, BLOCK_BYTES)
            await store_slowly(dpu, keys, blocks)
            assert await tier_counter(dpu, "prefetched") == 0
            assert await dpu.match(keys[:BATCH]) == BATCH
            deadline = time.monotonic() + PATIENCE_S
            while await tier_counter(dpu, "prefetched") < BATCH:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.001)
            into = np.zeros_like(blocks[:BATCH])
            assert (await dpu.retrieve(keys[:BATCH], into)).ok.all()
            assert np.array_equal(into, blocks[:BATCH])
            assert await tier_counter(dpu, "prefetch_useful") == BATCH
            assert await tier_counter(dpu, "prefetch_wasted") == 0


async def test_without_prefetch_a_match_moves_nothing(tmp_path: Path) -> None:
    with agent_over(tmp_path / "nvme", "udp", "--set=nvme.prefetch=none") as agent:
        async with await connected(agent) as dpu:
            keys, blocks = chain(dpu, BLOCKS), payload(BLOCKS, BLOCK_BYTES)
            await store_slowly(dpu, keys, blocks)
            assert await dpu.match(keys) == BLOCKS
            assert await count_right(dpu, keys[:BATCH], blocks[:BATCH]) == BATCH
            assert await tier_counter(dpu, "prefetched") == 0


async def test_blocks_are_right_under_every_setting_of_the_tier(tmp_path: Path) -> None:
    """The policy that learns in both tiers, guesses from conversations, and tight limits."""
    settings = {
        "store.policy": "reuse",
        "nvme.policy": "reuse",
        "nvme.prefetch": "next_turn",
        "nvme.prefetch_bytes_per_s": "4MiB",
        "nvme.demote_bytes_per_s": "64MiB",
        "nvme.compact_bytes_per_s": "1MiB",
        "state.directory": str(tmp_path / "state"),
    }
    options = [f"--set={name}={value}" for name, value in settings.items()]
    for _ in range(2):
        with agent_over(tmp_path / "nvme", "udp", *options) as agent:
            async with await connected(agent) as dpu:
                keys, blocks = chain(dpu, BLOCKS), payload(BLOCKS, BLOCK_BYTES)
                for first in range(0, BLOCKS, BATCH):
                    part = slice(first, first + BATCH)
                    await dpu.match(keys[: first + BATCH])
                    await dpu.store(keys[part], blocks[part])
                for first in range(0, BLOCKS, BATCH):
                    part = slice(first, first + BATCH)
                    into = np.zeros_like(blocks[part])
                    ok = (await dpu.retrieve(keys[part], into)).ok
                    assert np.array_equal(into[ok], blocks[part][ok])
            assert agent.end()[0] == 0
        names = {path.name for path in (tmp_path / "state").iterdir()}
        assert names == {"memory-reuse.learnt", "nvme-reuse.learnt"}


async def test_an_agent_without_files_says_that_nothing_survives() -> None:
    async with await host_driver.connect("emulated:?capacity=1MiB") as dpu:
        keys = chain(dpu, 2)
        result = await dpu.store(keys, payload(2), persistent=True)
        assert result.statuses.tolist() == [KeyStatus.NOT_PERSISTENT] * 2
        assert await dpu.match(keys) == 2
