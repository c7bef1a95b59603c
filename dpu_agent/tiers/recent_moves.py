"""Moves that a log has told of while it was not known yet where something was written."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence


class RecentMoves:
    """The items of one append end at different times, and its completion tells of all at once. One
    that ended early may have been moved by then, which was told before anybody knew the location.
    So moves are remembered for as long as an append is under way that was when they were told.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._under_way: Counter[int] = Counter()
        """Appends by the turn in which they began."""
        self._told: deque[tuple[int, int]] = deque()
        """The turn of a move, and what was moved."""
        self._new_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._new_of)

    def begin(self) -> int:
        """An append begins; what to end it with."""
        self._under_way[self._turn] += 1
        return self._turn

    def tell(self, moves: Sequence[tuple[int, int]]) -> None:
        """Old and new locations, as the log has just told them."""
        if not moves or not self._under_way:
            return
        self._turn += 1
        for old, new in moves:
            self._told.append((self._turn, old))
            self._new_of[old] = new

    def newest(self, location: int) -> int:
        """Where that is now which was written at a location."""
        while location in self._new_of:
            location = self._new_of[location]
        return location

    def end(self, turn: int) -> None:
        """An append that began in a turn has ended, and its locations are known."""
        self._under_way[turn] -= 1
        if not self._under_way[turn]:
            del self._under_way[turn]
        oldest = min(self._under_way, default=self._turn)
        while self._told and self._told[0][0] <= oldest:
            del self._new_of[self._told.popleft()[1]]
