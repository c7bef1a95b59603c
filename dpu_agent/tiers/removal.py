"""What the medium is to forget, again and again until it has: it may be full, even for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpu_agent.segments.requests import Completion, ItemStatus
from dpu_agent.tiers.medium import Medium

Told = Callable[[bool], None]
"""Takes whether all of it was forgotten."""

_SETTLED = (ItemStatus.OK, ItemStatus.NOT_FOUND)


@dataclass(slots=True)
class _Removal:
    """Locations that are being forgotten."""

    locations: Sequence[int]
    durable: bool
    told: Told | None


class Removals:
    """Deletions of the medium."""

    def __init__(self, medium: Medium, full: Callable[[], None]) -> None:
        """``full()`` is called when the medium has no room for a deletion; once it has,
        ``try_again``."""
        self._medium = medium
        self._full = full
        self._tickets: dict[int, _Removal] = {}
        self._waiting: list[_Removal] = []

    def begin(self, locations: Sequence[int], *, durable: bool, told: Told | None = None) -> None:
        """Have blocks forgotten; ``told(True)`` once they are, if durable for good."""
        self._start(_Removal(locations, durable, told))

    def _start(self, removal: _Removal) -> None:
        ticket = self._medium.delete(removal.locations, durable=removal.durable)
        self._tickets[ticket] = removal

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
        failed = [status for status in done.statuses if status not in _SETTLED]
        if any(status is not ItemStatus.NO_SPACE for status in failed):
            self._tell(removal, succeeded=False)
        elif failed:
            pairs = zip(removal.locations, done.statuses, strict=True)
            removal.locations = [place for place, status in pairs if status not in _SETTLED]
            self._waiting.append(removal)
            self._full()
        else:
            self._tell(removal, succeeded=True)
        return True

    def _tell(self, removal: _Removal, *, succeeded: bool) -> None:
        if removal.told is not None:
            removal.told(succeeded)
