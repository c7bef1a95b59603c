"""An agent's metrics as a scraper gets them, against what its hosts have done."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import host_driver
from host_driver import Dpu, DriverConfig, Namespace
from tests.support.agent_process import LIMIT_S, AgentProcess, spawn
from tests.support.driver_calls import chain, payload
from tests.support.metrics_page import MetricsPage, scrape

BLOCK_BYTES = 32 << 10
HOT_BLOCKS = 64
SIZES = (f"--capacity={HOT_BLOCKS * BLOCK_BYTES}", f"--block-bytes={BLOCK_BYTES}")
METRICS = "--metrics=127.0.0.1:0"
LATENCY = "kvlane_command_latency_seconds"
HITS, MISSES = "kvlane_lookup_hits_total", "kvlane_lookup_misses_total"


async def connected(agent: AgentProcess, link: str = "udp", name: str = "llama") -> Dpu:
    config = DriverConfig(device_options={"link": link})
    return await host_driver.connect(agent.control, namespace=Namespace(name=name), config=config)


async def page_of(agent: AgentProcess) -> MetricsPage:
    return await asyncio.to_thread(scrape, agent.metrics)


@pytest.mark.parametrize("link", ["udp", "pcie"])
async def test_figures_agree_with_what_was_done_and_outlive_the_session(link: str) -> None:
    with AgentProcess(f"--link={link}", METRICS, *SIZES) as agent:
        async with await connected(agent, link) as dpu:
            keys, blocks = chain(dpu, 12), payload(12, BLOCK_BYTES)
            into = np.zeros_like(blocks)
            assert (await dpu.store(keys[:8], blocks[:8])).ok.all()
            assert await dpu.match(keys) == 8
            assert (await dpu.retrieve(keys, into)).ok.sum() == 8
            assert (await dpu.exist(keys[6:])).sum() == 2
            await dpu.delete(keys[:1])
            during = await page_of(agent)
        after = await page_of(agent)
    tenant = {"namespace": "llama", "tier": "memory"}
    for page in (during, after):
        for operation, hits, misses in (("match", 8, 4), ("retrieve", 8, 4), ("exist", 2, 4)):
            assert page.value(HITS, operation=operation, **tenant) == hits
            assert page.value(MISSES, operation=operation, **tenant) == misses
        for operation in ("store", "retrieve", "match", "exist", "delete"):
            where = {"operation": operation, "tier": "memory"}
            assert page.value("kvlane_commands_total", operation=operation) == 1
            assert page.value(f"{LATENCY}_count", **where) == 1
            assert 0 < page.value(f"{LATENCY}_sum", **where) < LIMIT_S
        for direction in ("stored", "retrieved"):
            moved = page.value("kvlane_host_bytes_total", namespace="llama", direction=direction)
            assert moved == 8 * BLOCK_BYTES
        assert page.value("kvlane_tier_blocks", tier="memory") == 7
        assert page.value("kvlane_deleted_blocks_total", tier="memory") == 1
        assert page.value("kvlane_tier_capacity_blocks", tier="memory") == HOT_BLOCKS
        assert page.label_values("kvlane_nic_events_total", "counter")
        assert page.label_values("kvlane_build_info", "boot_id") == {agent.boot_id.hex()}
    assert (during.value("kvlane_sessions"), after.value("kvlane_sessions")) == (1, 0)
    assert list(after.fallen_since(during)) == []


async def test_what_lies_in_files_is_told_apart(tmp_path: Path) -> None:
    count = 2 * HOT_BLOCKS
    tier = (f"--nvme={tmp_path}", "--nvme-capacity=32MiB", "--nvme-segment=2MiB")
    # Nothing is to come back but what is asked for.
    with AgentProcess(METRICS, *SIZES, *tier, "--set=nvme.prefetch=none") as agent:
        async with await connected(agent) as dpu:
            keys, blocks = chain(dpu, count), payload(count, BLOCK_BYTES)
            for first in range(0, count, 8):
                part = slice(first, first + 8)
                assert (await dpu.store(keys[part], blocks[part], persistent=True)).ok.all()
            before = await page_of(agent)
            into = np.zeros_like(blocks[:4])
            assert (await dpu.retrieve(keys[:4], into)).ok.all()
            assert await dpu.match(keys) == count
            after = await page_of(agent)
    hits = {"namespace": "llama", "operation": "retrieve"}
    assert after.value(HITS, tier="nvme", **hits) == 4
    assert after.value(MISSES, tier="memory", **hits) == 4
    assert after.value(MISSES, tier="nvme", **hits) == 0
    matched = [
        after.value(HITS, namespace="llama", operation="match", tier=tier)
        for tier in ("memory", "nvme")
    ]
    assert sum(matched) == count
    assert all(matched)
    assert after.value(f"{LATENCY}_count", operation="retrieve", tier="nvme") == 1
    assert after.value(f"{LATENCY}_count", operation="store", tier="nvme") == count / 8
    moved = "kvlane_tier_moved_bytes_total"
    assert after.value(moved, direction="promoted") == 4 * BLOCK_BYTES
    assert after.value(moved, direction="demoted") == count * BLOCK_BYTES
    assert after.value("kvlane_tier_blocks", tier="nvme") == count
    assert after.value("kvlane_segment_log_bytes", state="live") == count * BLOCK_BYTES
    causes = [
        after.value("kvlane_evicted_blocks_total", tier="memory", cause=cause)
        for cause in ("capacity", "demotion")
    ]
    assert sum(causes) >= count - HOT_BLOCKS
    assert list(after.fallen_since(before)) == []


async def test_scrapes_while_sessions_come_and_go() -> None:
    with AgentProcess(METRICS, "--workers=2", *SIZES) as agent:
        pages: list[MetricsPage] = []
        over = asyncio.Event()

        async def scrape_on() -> None:
            while not over.is_set():
                pages.append(await page_of(agent))

        scraping = asyncio.create_task(scrape_on())
        for number in range(10):
            async with await connected(agent, name=f"tenant {number % 3}") as dpu:
                keys, blocks = chain(dpu, 4), payload(4, BLOCK_BYTES)
                await dpu.store(keys, blocks)
                await dpu.exist(keys)
        over.set()
        await scraping
        pages.append(await page_of(agent))
    for earlier, later in pairwise(pages):
        assert list(later.fallen_since(earlier)) == []
    last = pages[-1]
    names = last.label_values("kvlane_host_bytes_total", "namespace")
    assert names == {f"tenant {number}" for number in range(3)}
    assert sum(
        last.value(HITS, namespace=name, operation="exist", tier="memory") for name in names
    ) == pytest.approx(40)


async def test_a_scraper_that_hangs_delays_neither_data_nor_the_end() -> None:
    with AgentProcess(METRICS, *SIZES) as agent:
        host, _, port = agent.metrics.rpartition(":")
        with socket.create_connection((host, int(port))) as hanging:
            hanging.sendall(b"GET /metrics HTTP/1.0\r\n")
            async with await connected(agent) as dpu:
                keys, blocks = chain(dpu, 4), payload(4, BLOCK_BYTES)
                assert (await dpu.store(keys, blocks)).ok.all()
                assert (await page_of(agent)).value("kvlane_sessions") == 1
            code, _, errors = await asyncio.to_thread(agent.end)
    assert code == 0
    assert "Traceback" not in errors


async def test_scrapes_go_on_until_the_agent_has_ended() -> None:
    with AgentProcess(METRICS, *SIZES) as agent:
        before = await page_of(agent)

        async def scrape_to_the_end() -> MetricsPage:
            last = before
            while True:
                try:
                    last = await page_of(agent)
                except (urllib.error.URLError, ConnectionError):
                    return last

        scraping = asyncio.create_task(scrape_to_the_end())
        code, _, errors = await asyncio.to_thread(agent.end)
        await scraping
    assert code == 0
    assert "Traceback" not in errors


def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        process = spawn("--listen=127.0.0.1:0", f"--metrics={listen}")
        out, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (2, "")
    (line,) = errors.splitlines()
    assert listen in line


def test_without_metrics_nothing_is_announced() -> None:
    with AgentProcess(*SIZES) as agent:
        assert agent.metrics == ""
