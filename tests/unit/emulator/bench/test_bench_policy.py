"""The benchmark of policies: every policy is there, beside libcachesim or without it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from emulator.bench import cli, policy
from emulator.bench.peers.child import PEERS_PYTHON
from emulator.bench.peers.interface import PeerUnavailableError
from emulator.bench.peers.libcachesim import LIBCACHESIM, LibCacheSim
from host_driver.replay.chat import chat_requests
from kvlane.jit import JIT_ENABLED
from tests.support.requirements import lacking

REQUESTS = 300 if JIT_ENABLED else 10


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    trace = tmp_path / "trace.jsonl"
    with trace.open("w") as lines:
        for request in itertools.islice(chat_requests(3), REQUESTS):
            fields = {"timestamp": request.timestamp_ms, "hash_ids": request.block_ids}
            lines.write(json.dumps({**fields, "input_length": 1, "output_length": 1}) + "\n")
    return trace


def test_every_policy_is_compared_over_the_trace_that_is_given(trace: Path) -> None:
    arguments = ["policy", "--trace", str(trace), "--rounds", "1", "--json"]
    result = CliRunner().invoke(cli.bench, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    wanted = itertools.product(policy.CLASSES, policy.CAPACITIES_BLOCKS)
    assert [bench["name"] for bench in report["benches"]] == [
        f"policy-{name}-{capacity}" for name, capacity in wanted
    ]
    assert all(bench["value"] > 0 for bench in report["benches"])
    is_alone = [peer["name"] for peer in report["missing_peers"]] == [LIBCACHESIM]
    assert all((bench["ratio"] is None) == is_alone for bench in report["benches"])


def test_without_a_trace_it_is_synthetic_chat() -> None:
    report = policy.run(1, lambda _: None, None, (200,), requests=10)
    assert [result.name for result in report.results] == [
        f"policy-{name}-200" for name in policy.CLASSES
    ]


def test_libcachesim_replays_what_it_is_given() -> None:
    try:
        peer = LibCacheSim(np.array([0, 1, 0, 2, 1, 0]))
    except PeerUnavailableError as error:
        lacking(f"libcachesim runs neither here nor by {PEERS_PYTHON}: {error}")
    try:
        assert peer.million_requests_per_second("LRU", 2) > 0
        with pytest.raises(RuntimeError, match="NoSuchCache"):
            peer.million_requests_per_second("NoSuchCache", 2)
    finally:
        peer.close()
