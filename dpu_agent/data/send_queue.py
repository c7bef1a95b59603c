"""Work requests on their way into a queue pair that holds only so many of them."""

from __future__ import annotations

from collections import deque

from kvlane.verbs.enums import SendFlags
from kvlane.verbs.protocols import QueuePair
from kvlane.verbs.records import RecordArray


class SendQueue:
    """Posts batches in order, as far as the send queue has room, and the rest as it drains.

    A NIC frees entries of a send queue only by the completion of a signaled request, for
    that one and all before it. So every chunk that is posted ends in a signaled request,
    and the chunk's size is remembered until that completion is seen (``retire``).
    """

    def __init__(self, qp: QueuePair, depth: int) -> None:
        self._qp = qp
        self._room = depth
        # Half of the queue at most, so that one half is at work while the other is refilled.
        self._chunk_max = max(1, depth // 2)
        self._backlog: deque[RecordArray] = deque()
        self._posted: deque[int] = deque()

    def submit(self, requests: RecordArray) -> None:
        """Take a batch of SEND_WR records, the last of them signaled and no other."""
        self._backlog.append(requests)
        self._pump()

    def retire(self) -> None:
        """A signaled request has completed: its chunk has left the send queue."""
        self._room += self._posted.popleft()
        self._pump()

    def _pump(self) -> None:
        while self._backlog and self._room:
            batch = self._backlog[0]
            count = min(len(batch), self._room, self._chunk_max)
            chunk = batch[:count]
            chunk["send_flags"][-1] |= SendFlags.SIGNALED
            self._qp.post_send(chunk)
            self._room -= count
            self._posted.append(count)
            if count == len(batch):
                self._backlog.popleft()
            else:
                self._backlog[0] = batch[count:]
