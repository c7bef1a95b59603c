"""Transfers of blocks that the staging is too small for: registered for the call, lot by lot.

A session may have so many regions and no more. So one such transfer is under way at a time,
with a lot of its blocks registered, and the next lot follows when the agent has let go of
the last. It all happens in the thread of whoever runs it, which waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_driver.commands import Operation
from host_driver.memory import TEMPORARY_REGIONS
from host_driver.registrations import Registrations
from host_driver.transfer import Transfer
from kvlane.capsule import Opcode
from kvlane.errors import DeadlineError, KvlaneError
from kvlane.seams import Clock
from kvlane.verbs.enums import AccessFlags

_ACCESS = {
    Opcode.STORE: AccessFlags.REMOTE_READ,
    Opcode.RETRIEVE: AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE,
}


class OversizedTransfers:
    """Runs the transfers of one session that have oversized blocks. Any thread may call."""

    def __init__(
        self, memory: Registrations, run: Callable[[Operation[Any]], None], clock: Clock
    ) -> None:
        """``run`` drives an operation to its end in the calling thread."""
        self._memory = memory
        self._run = run
        self._clock = clock
        self._busy = threading.Lock()

    def run(self, transfer: Transfer[Any]) -> None:
        """Move all blocks; returns when the transfer has ended, well or not."""
        remaining_s = (transfer.deadline_ns - self._clock()) / 1e9
        if not self._busy.acquire(timeout=max(remaining_s, 0)):
            name = transfer.opcode.name
            transfer.give_up(DeadlineError(f"{name} waited for other large ones for too long"))
            return
        try:
            for span in lots(transfer.placement.oversized, TEMPORARY_REGIONS):
                part = self._run_lot(transfer, span)
                if part.error is not None:
                    transfer.note(part.error)
                    break
        except KvlaneError as error:
            transfer.note(error)
        finally:
            self._busy.release()
        transfer.finish()

    def _run_lot(self, transfer: Transfer[Any], span: slice) -> Transfer[Any]:
        placement = transfer.placement
        blocks = placement.blocks.part(span)
        oversized = np.flatnonzero(placement.oversized[span])
        rkeys = placement.rkeys[span].copy()
        regions = self._memory.register_blocks(blocks, oversized, _ACCESS[transfer.opcode])
        try:
            rkeys[oversized] = [region.rkey for region in regions]
            part = transfer.part(span, rkeys)
            part.regions = (*transfer.regions, *regions)
            self._memory.announce(part.regions)
            self._run(part)
            return part
        finally:
            self._memory.withdraw(regions)


def lots(oversized: NDArray[np.bool_], size: int) -> Iterator[slice]:
    """Consecutive spans of all items with at most ``size`` oversized ones each."""
    # An item belongs to the lot that the oversized ones before it have begun or filled.
    numbers = np.maximum(np.cumsum(oversized) - 1, 0) // size
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(oversized)]
    for start, stop in pairwise(starts):
        yield slice(start, stop)
