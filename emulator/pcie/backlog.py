"""Messages that wait because their receiver's socket is full.

Each receiver has a queue of its own, so that one who does not read holds up nobody else. It is
tried ever less often, and what waits for it is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from emulator.pcie.layout import MAX_WAITING_MESSAGES, PEER_CAPACITY
from kvlane.errors import CapacityError, VerbsError

FIRST_DELAY_NS = 1_000_000
MAX_DELAY_NS = 100_000_000
NOT_DUE = 0
"""Instead of a time: nothing waits."""


class File(Protocol):
    """What a message carries; closed in the meantime, it has no descriptor any more."""

    @property
    def fd(self) -> int:
        """Negative when it is closed."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A datagram with its files. They are not kept open for it."""

    data: bytes
    files: Sequence[File] = ()

    def is_obsolete(self) -> bool:
        """Whether any of it was closed before it was sent: nobody is to hear of it any more."""
        return any(file.fd < 0 for file in self.files)


@dataclass(slots=True)
class _Queue:
    """What waits for one receiver, and when it is tried again."""

    due_ns: int
    delay_ns: int = FIRST_DELAY_NS
    parcels: deque[Parcel] = field(default_factory=deque)

    def put_off(self, now_ns: int, *, got_on: bool) -> None:
        """Until later: for twice as long as the last time, unless something went through."""
        self.delay_ns = FIRST_DELAY_NS if got_on else min(2 * self.delay_ns, MAX_DELAY_NS)
        self.due_ns = now_ns + self.delay_ns


class Backlogs:
    """What waits for each device, by GID."""

    def __init__(self, try_send: Callable[[bytes, Parcel], bool]) -> None:
        """``try_send`` is False when the receiver's socket is full, and raises ``VerbsError`` when
        there is no such device."""
        self._try_send = try_send
        self._queues: dict[bytes, _Queue] = {}

    @property
    def due_ns(self) -> int:
        """When to ``flush`` next; ``NOT_DUE`` when nothing waits."""
        return min((queue.due_ns for queue in self._queues.values()), default=NOT_DUE)

    def __contains__(self, gid: bytes) -> bool:
        return gid in self._queues

    def waiting(self, gid: bytes) -> int:
        """How many messages wait for a device."""
        return len(self._queues[gid].parcels) if gid in self._queues else 0

    def append(self, gid: bytes, parcel: Parcel, now_ns: int) -> None:
        """Keep a message for later; ``CapacityError`` when too many wait."""
        queue = self._queues.get(gid)
        if queue is None:
            if len(self._queues) >= PEER_CAPACITY:
                raise CapacityError(
                    f"{PEER_CAPACITY} devices do not read their messages; end their processes"
                )
            queue = self._queues[gid] = _Queue(now_ns + FIRST_DELAY_NS)
        if len(queue.parcels) >= MAX_WAITING_MESSAGES:
            raise CapacityError(
                f"the pcie device with GID {gid.hex()} does not read its messages, and "
                f"{MAX_WAITING_MESSAGES} wait for it: its process is stopped, or does not drive it"
            )
        queue.parcels.append(parcel)

    def flush(self, now_ns: int) -> list[bytes]:
        """Send what is due, as far as it goes; the devices that are no more."""
        gone = []
        for gid, queue in list(self._queues.items()):
            if queue.due_ns > now_ns:
                continue
            try:
                self._flush_one(gid, queue, now_ns)
            except VerbsError:
                self.drop(gid)
                gone.append(gid)
        return gone

    def _flush_one(self, gid: bytes, queue: _Queue, now_ns: int) -> None:
        before = len(queue.parcels)
        while queue.parcels:
            parcel = queue.parcels[0]
            if not parcel.is_obsolete() and not self._try_send(gid, parcel):
                queue.put_off(now_ns, got_on=len(queue.parcels) < before)
                return
            queue.parcels.popleft()
        del self._queues[gid]

    def drop(self, gid: bytes) -> None:
        """Forget what waits for a device."""
        self._queues.pop(gid, None)

    def clear(self) -> None:
        """Forget all."""
        self._queues.clear()
