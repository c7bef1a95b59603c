"""``kvlane replay`` against a real agent: hits of a cache that never evicts, whatever the link
does, and exit code 1 when bytes come back that are not those of the key."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import host_driver
from host_driver import DriverConfig
from host_driver.cli.replay import EXIT_WRONG_BYTES, ReplayJob
from host_driver.replay.runner import ReplayOptions
from host_driver.replay.workload import Workload
from kvlane.keys import adopted_key
from tests.support.agent_process import AgentProcess
from tests.support.cache_model import sequential_hits
from tests.support.repository import ROOT, run_python

BLOCK_BYTES = 512
CHAT = Workload(trace=None, limit=60, seed=3)
FAULTS = "drop=0.01,dup=0.01,reorder=0.01,corrupt=0.005"


def replay(*arguments: str) -> CompletedProcess[str]:
    command = ["-m", "host_driver.cli.main", "replay", f"--block-bytes={BLOCK_BYTES}", "--json"]
    return run_python([*command, *arguments], cwd=ROOT)


@pytest.mark.parametrize("faults", ["", FAULTS])
def test_hits_are_those_of_an_unbounded_cache(faults: str) -> None:
    done = replay(f"--requests={CHAT.limit}", f"--seed={CHAT.seed}", f"--faults={faults}")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    chains = [request.block_ids for request in CHAT.requests()]
    assert said["blocks_hit"] == said["unbounded_hits"] == sequential_hits(chains) > 0
    assert said["blocks_asked"] == sum(map(len, chains))
    # The default capacity is the workload's, to the block.
    assert said["blocks_stored"] == CHAT.unique_blocks()
    assert (said["blocks_evicted"], said["blocks_refused"]) == (0, 0)
    assert said["verification_errors"] == 0
    assert said["retransmissions"] > 0 or not faults


def test_a_block_that_is_not_what_its_key_says_gives_exit_code_1(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [5, 6]}')
    arguments = [f"--capacity={64 * BLOCK_BYTES}", f"--block-bytes={BLOCK_BYTES}"]
    with AgentProcess(*arguments) as agent:
        options = ReplayOptions(BLOCK_BYTES)
        job = ReplayJob(Workload(trace, None, 1), agent.control, options, DriverConfig())
        with host_driver.connect_sync(agent.control, namespace=job.namespace) as dpu:
            key = adopted_key(dpu.root_key, (5).to_bytes(8, "little"))
            assert dpu.store([key], [b"x" * BLOCK_BYTES]).ok.all()
        done = replay(str(trace), f"--target={agent.control}")
    assert done.returncode == EXIT_WRONG_BYTES == 1, done.stderr
    said = json.loads(done.stdout)
    assert (said["blocks_hit"], said["verification_errors"]) == (1, 1)
    assert said["blocks_stored"] == 1
