"""Held: the self-test leaves nothing on the NIC, and names a NIC that cannot carry data."""

from __future__ import annotations

import itertools
import logging

import pytest

from host_driver.self_test import LIMIT_NS, self_test
from kvlane.verbs.enums import WrOpcode
from tests.support.loopback_verbs import LoopbackFabric


def test_a_sound_nic_passes_and_is_left_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    fabric = LoopbackFabric()
    assert self_test(fabric.devices[0], itertools.count().__next__)
    assert caplog.records == []
    assert fabric.qps == {}
    assert fabric.devices[0].regions == {}


@pytest.mark.parametrize(
    "held", [WrOpcode.SEND, WrOpcode.RDMA_READ, WrOpcode.RDMA_WRITE], ids=lambda held: held.name
)
def test_a_nic_that_carries_one_kind_not_is_named(
    held: WrOpcode, caplog: pytest.LogCaptureFixture
) -> None:
    fabric = LoopbackFabric()
    fabric.hold(held)
    with caplog.at_level(logging.WARNING):
        assert not self_test(fabric.devices[0], itertools.count(0, LIMIT_NS // 4).__next__)
    assert "loopback1 cannot carry data to itself" in caplog.text
    assert fabric.qps == {}
    assert fabric.devices[0].regions == {}
