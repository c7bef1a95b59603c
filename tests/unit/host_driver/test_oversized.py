"""Held: what is registered for a call stays within its share of regions, and goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_driver.buffers import block_list
from host_driver.commands import Operation, Request
from host_driver.memory import TEMPORARY_REGIONS
from host_driver.oversized import OversizedTransfers, lots
from host_driver.registrations import Registrations
from host_driver.transfer import Placement, StoreOperation
from kvlane.capsule import KeyStatus
from kvlane.errors import CapacityError, DeadlineError, KvlaneError, TransferError
from kvlane.verbs.protocols import MemoryRegion
from tests.support.scripted_agent import Rig

DEADLINE_NS = 1000
TOO_LONG = 5000
STAGING = 4096


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 5))
def test_lots_cover_everything_once_and_are_as_large_as_they_may(
    flags: list[bool], size: int
) -> None:
    oversized = np.array(flags)
    spans = list(lots(oversized, size))
    assert [i for span in spans for i in range(len(flags))[span]] == list(range(len(flags)))
    counts = [int(oversized[span].sum()) for span in spans]
    assert max(counts) <= size
    assert counts[:-1] == [size] * (len(counts) - 1)


class Side:
    """The agent on the control plane (which regions it knows) and on the data path."""

    def __init__(self) -> None:
        self.rig = Rig(staging=STAGING)
        self.memory = Registrations(self.rig.device, self.register, self.deregister, lambda: None)
        self.known: set[int] = set()
        self.largest = 0
        self.refuse: KvlaneError | None = None
        self.lots_before_failure = 1000
        self.now_ns = 0
        self.transfers = OversizedTransfers(self.memory, self.drive, lambda: self.now_ns)
        self.local_regions = len(self.rig.device.regions)

    def register(self, regions: Sequence[MemoryRegion]) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.known |= {region.rkey for region in regions}
        self.largest = max(self.largest, len(self.known))

    def deregister(self, rkeys: Sequence[int]) -> None:
        self.known -= set(rkeys)

    def drive(self, operation: Operation[Any]) -> None:
        self.rig.queue.submit(operation)
        if not self.lots_before_failure:
            self.rig.queue.fail(TransferError("gone"))
        self.lots_before_failure -= 1
        while not operation.ended:
            self.rig.pump()
            for received in self.rig.agent.commands():
                for descriptor in received.command.descriptors:
                    assert int(descriptor.rkey) in {*self.known, self.rig.staging.region.rkey}
                self.rig.agent.answer(received)

    def store(self, blocks: list[bytes]) -> StoreOperation:
        listed = block_list(blocks, name="blocks", writable=False)
        placement = Placement(listed, np.full(len(blocks), -1), self.rig.staging)
        keys = np.zeros((len(blocks), 32), np.uint8)
        return StoreOperation(Request(keys, DEADLINE_NS), placement, checksums=False)


@pytest.fixture
def side() -> Side:
    return Side()


def test_more_blocks_than_regions_go_lot_by_lot(side: Side) -> None:
    transfer = side.store([bytes(TOO_LONG), b"short"] * (2 * TEMPORARY_REGIONS + 1))
    side.transfers.run(transfer)
    assert transfer.error is None
    assert transfer.result().ok.all()
    assert side.largest == TEMPORARY_REGIONS
    assert side.known == set()
    assert len(side.rig.device.regions) == side.local_regions


def test_a_failure_ends_it_after_the_lots_that_went_well(side: Side) -> None:
    side.lots_before_failure = 1
    transfer = side.store([bytes(TOO_LONG)] * (3 * TEMPORARY_REGIONS))
    side.transfers.run(transfer)
    assert transfer.ended
    with pytest.raises(TransferError, match="gone") as caught:
        transfer.raise_error()
    statuses = caught.value.results.statuses.tolist()
    assert statuses[:TEMPORARY_REGIONS] == [KeyStatus.OK] * TEMPORARY_REGIONS
    assert set(statuses[TEMPORARY_REGIONS:]) == {KeyStatus.ABORTED}
    assert len(side.rig.device.regions) == side.local_regions


def test_regions_that_the_agent_refuses_are_given_back(side: Side) -> None:
    side.refuse = CapacityError("too many")
    transfer = side.store([bytes(TOO_LONG)])
    side.transfers.run(transfer)
    assert isinstance(transfer.error, CapacityError)
    assert len(side.rig.device.regions) == side.local_regions


def test_waiting_for_another_ends_with_the_time_of_the_call(side: Side) -> None:
    other, late = side.store([bytes(TOO_LONG)]), side.store([bytes(TOO_LONG)])
    drive = side.drive

    def meanwhile(operation: Operation[Any]) -> None:
        side.now_ns = DEADLINE_NS
        side.transfers.run(late)
        drive(operation)

    transfers = OversizedTransfers(side.memory, meanwhile, lambda: side.now_ns)
    side.transfers = transfers
    transfers.run(other)
    assert other.result().ok.all()
    assert isinstance(late.error, DeadlineError)
    assert late.ended
