"""What is posted to one queue of a queue pair and has not left it: the accounting of slots.

A queue of hardware is full by a count that its library keeps, larger than what was asked
for, and says so in the middle of a batch. So the slots are counted here, as they were asked
for. Each request is posted under a ticket, its number in the order of posting, which a
completion brings back also when it failed and does not tell which of the two queues it is
of; the number that the caller gave stands in the ring.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlane.errors import QueueFullError

_RECEIVE_BIT = 1


class WorkRing:
    """A send queue or a receive queue of ``depth`` slots."""

    def __init__(self, depth: int, *, is_receive: bool) -> None:
        self._wr_ids = np.zeros(depth, np.int64)
        self._tag = _RECEIVE_BIT if is_receive else 0
        self._posted = 0
        self._retired = 0

    @property
    def free(self) -> int:
        """Slots that nothing occupies."""
        return len(self._wr_ids) - (self._posted - self._retired)

    def admit(self, wr_ids: NDArray[np.int64]) -> list[int]:
        """Take a slot for each request and give its ticket; ``QueueFullError`` takes none."""
        count = len(wr_ids)
        if count > self.free:
            raise QueueFullError(
                f"{count} work requests for a queue with {self.free} of {len(self._wr_ids)} "
                f"slots free; take completions first, or make the queue deeper"
            )
        serials = np.arange(self._posted, self._posted + count)
        self._wr_ids[serials % len(self._wr_ids)] = wr_ids
        self._posted += count
        tickets: list[int] = (serials << 1 | self._tag).tolist()
        return tickets

    def retire(self, ticket: int) -> int:
        """The caller's number of a completed request. It and all before it leave the queue:
        a completion stands also for the requests before it that were not signaled."""
        serial = ticket >> 1
        self._retired = max(self._retired, serial + 1)
        return int(self._wr_ids[serial % len(self._wr_ids)])


class QueuePairWork:
    """The rings of both queues of a queue pair."""

    def __init__(self, send_depth: int, receive_depth: int) -> None:
        self.sends = WorkRing(send_depth, is_receive=False)
        self.receives = WorkRing(receive_depth, is_receive=True)

    def retire(self, ticket: int) -> int:
        """The caller's number of what has completed in either queue."""
        ring = self.receives if ticket & _RECEIVE_BIT else self.sends
        return ring.retire(ticket)
