"""``kvlane replay --rdma-device``: the workload that checks itself, over pyverbs."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from dpu_agent.config import StoreConfig
from emulator.pyverbs.config import FabricConfig
from emulator.pyverbs.loader import installed
from host_driver.cli.main import main
from tests.support.pyverbs_agent import agent_here


def replay(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["replay", *arguments])


def test_every_byte_comes_back_over_an_rdma_device() -> None:
    store = StoreConfig(capacity_bytes=64 << 20, block_bytes=16384)
    with installed(FabricConfig(devices=2)), agent_here("kvlane0", store) as control:
        arguments = ["--target", control, "--rdma-device", "kvlane1", "--mtu", "1024"]
        arguments += ["--requests", "10", "--block-bytes", "16384", "--json"]
        result = replay(*arguments)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.strip().splitlines()[-1])
    assert told["verification_errors"] == 0
    assert told["requests"] == 10


@pytest.mark.parametrize("option", ["--faults=drop=0.1", "--data-listen=127.0.0.1:0"])
def test_what_only_an_emulated_nic_has_is_refused(option: str) -> None:
    result = replay("--target", "127.0.0.1:9", "--rdma-device", "mlx5_0", option)
    assert result.exit_code == 2
    assert f"{option.partition('=')[0]} is for the emulated NIC" in result.output
