"""The round of commands before the agent is ready: it works, leaves nothing, and never hangs."""

from __future__ import annotations

import logging
from itertools import count

import pytest

from dpu_agent.runtime.warmup import warm_up
from kvlane.verbs.enums import WrOpcode
from tests.support.loopback_verbs import LoopbackFabric


@pytest.mark.parametrize("colder", [False, True])
def test_a_good_device_passes_and_is_left_as_it_was(
    colder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fabric = LoopbackFabric(devices=1)
    (device,) = fabric.devices
    assert warm_up(device, "lru", clock=lambda: 0, colder=colder)
    assert caplog.records == []
    assert (fabric.qps, device.regions) == ({}, {})


@pytest.mark.parametrize("lost", [WrOpcode.SEND, WrOpcode.RDMA_READ, WrOpcode.RDMA_WRITE])
def test_a_device_that_carries_nothing_is_reported_in_the_end(
    lost: WrOpcode, caplog: pytest.LogCaptureFixture
) -> None:
    fabric = LoopbackFabric(devices=1)
    (device,) = fabric.devices
    fabric.hold(lost)
    ticks = count(step=1_000_000_000)
    assert not warm_up(device, "lru", clock=lambda: next(ticks))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "no response" in record.getMessage()
    assert (fabric.qps, device.regions) == ({}, {})
