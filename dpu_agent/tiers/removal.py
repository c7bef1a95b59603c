"""What the medium is to forget, again and again until it has: it may be full, even for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dpu_agent.segments.requests import Completion, ItemStatus
from dpu_agent.tiers.medium import Medium

Told = Callable[[bool], None]
"""Takes whether all of it was forgotten."""

_SETTLED = (ItemStatus.OK, ItemStatus.NOT_FOUND)


@dataclass(slots=True)
class _Fence:
    """Somebody who is told once all that is being forgotten is."""

    told: Told
    missing: int
    succeeded: bool = True

    def pass_one(self, *, succeeded: bool) -> None:
        self.missing -= 1
        self.succeeded = self.succeeded and succeeded
        if self.missing == 0:
            self.told(self.succeeded)


@dataclass(slots=True)
class _Removal:
    """Locations that are being forgotten."""

    locations: Sequence[int]
    fences: list[_Fence] = field(default_factory=list)


class Removals:
    """Deletions of the medium. All are durable: what was evicted may be deleted next, and then
    it must not come back."""

    def __init__(self, medium: Medium, full: Callable[[], None]) -> None:
        """``full()`` is called when the medium has no room for a deletion; once it has,
        ``try_again``."""
        self._medium = medium
        self._full = full
        self._tickets: dict[int, _Removal] = {}
        self._waiting: list[_Removal] = []
        self._failed: list[int] = []
        """Locations that the medium could not forget."""

    def begin(self, locations: Sequence[int]) -> None:
        """Have blocks forgotten."""
        if locations:
            self._start(_Removal(locations))

    def fence(self, told: Told) -> None:
        """``told(True)`` once all is forgotten for good that was ever to be, ``told(False)`` where
        some of it cannot be."""
        failed, self._failed = self._failed, []
        self.begin(failed)
        pending = [*self._tickets.values(), *self._waiting]
        if not pending:
            told(True)
            return
        fence = _Fence(told, len(pending))
        for removal in pending:
            removal.fences.append(fence)

    def _start(self, removal: _Removal) -> None:
        self._tickets[self._medium.delete(removal.locations, durable=True)] = removal

    def try_again(self) -> None:
        """Have forgotten what there was no room for."""
        waiting, self._waiting = self._waiting, []
        for removal in waiting:
            self._start(removal)

    def finish(self, done: Completion) -> bool:
        """Whether the ticket was one of these."""
        removal = self._tickets.pop(done.ticket, None)
        if removal is None:
            return False
        pairs = zip(removal.locations, done.statuses, strict=True)
        left = {place: status for place, status in pairs if status not in _SETTLED}
        if any(status is not ItemStatus.NO_SPACE for status in left.values()):
            self._failed += left
            self._end(removal, succeeded=False)
        elif left:
            removal.locations = list(left)
            self._waiting.append(removal)
            self._full()
        else:
            self._end(removal, succeeded=True)
        return True

    def _end(self, removal: _Removal, *, succeeded: bool) -> None:
        for fence in removal.fences:
            fence.pass_one(succeeded=succeeded)
