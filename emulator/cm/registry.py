"""Communications by id and by the peer's request, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

from emulator.cm.communication import Communication
from emulator.cm.states import TIMER_OF, Timer
from emulator.wire.cm import CmMessage
from kvlane.errors import CapacityError
from kvlane.seams import Rng

_COMM_ID_BITS = 32

RequestKey = tuple[type[CmMessage], bytes, int]
"""Kind of a request, GID of its sender, the sender's id in it."""


class Registry:
    """Where a manager keeps its communications."""

    def __init__(self, rng: Rng, capacity: int) -> None:
        self._capacity = capacity
        self._by_id: dict[int, Communication] = {}
        self._by_request: dict[RequestKey, int] = {}
        # Random, so that late messages to an earlier process find nobody.
        self._next_id = rng.getrandbits(_COMM_ID_BITS)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Communication]:
        return iter(list(self._by_id.values()))

    def get(self, comm_id: int | None) -> Communication | None:
        """The communication of an id."""
        return None if comm_id is None else self._by_id.get(comm_id)

    def of_request(self, key: RequestKey) -> Communication | None:
        """The communication that a peer's request has begun."""
        return self.get(self._by_request.get(key))

    def new_id(self) -> int:
        """An id that is not in use, and not 0, which stands for none."""
        while True:
            self._next_id = (self._next_id + 1) % (1 << _COMM_ID_BITS)
            if self._next_id and self._next_id not in self._by_id:
                return self._next_id

    def has_room(self) -> bool:
        """Whether one more fits, if need be in the place of one that is over and lingers."""
        return len(self._by_id) < self._capacity or self._oldest_lingering() is not None

    def add(self, new: Communication) -> None:
        """Keep it; ``CapacityError`` when there are too many that are alive."""
        if len(self._by_id) >= self._capacity:
            over = self._oldest_lingering()
            if over is None:
                raise CapacityError(f"{self._capacity} communications at once are the most")
            self.remove(over)
        self._by_id[new.comm_id] = new
        if new.request_key is not None:
            self._by_request[new.request_key] = new.comm_id

    def remove(self, one: Communication) -> None:
        """Forget it."""
        del self._by_id[one.comm_id]
        if one.request_key is not None:
            del self._by_request[one.request_key]

    def _oldest_lingering(self) -> Communication | None:
        lingering = [one for one in self if TIMER_OF[one.state] == Timer.LINGER]
        return min(lingering, key=lambda one: one.deadline, default=None)
