"""A link that does to frames whatever a network may do, from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from emulator.link.damage import damaged
from tests.support.roce_pair import Frame


@dataclass(frozen=True)
class Odds:
    """How likely each mishap is for a frame, 0 to 1."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    delay: float = 0.0


_MAX_DELAY_STEPS = 20


class BadLink:
    """A channel of a ``Pair``: drops, repeats, swaps, damages and delays."""

    def __init__(self, seed: int, odds: Odds) -> None:
        self._rng = random.Random(seed)
        self._odds = odds
        self._step = 0
        self._held: list[tuple[int, Frame]] = []
        """Frames under way, each with the step in which it arrives."""

    def __call__(self, frames: list[Frame]) -> list[Frame]:
        """What arrives now, of ``frames`` and of what was held back."""
        self._step += 1
        out = [frame for due, frame in self._held if due <= self._step]
        self._held = [(due, frame) for due, frame in self._held if due > self._step]
        for frame in frames:
            if self._happens(self._odds.drop):
                continue
            copies = 2 if self._happens(self._odds.duplicate) else 1
            for _ in range(copies):
                self._pass(self._damaged(frame), out)
        return out

    def _happens(self, odds: float) -> bool:
        return self._rng.random() < odds

    def _damaged(self, frame: Frame) -> Frame:
        if not self._happens(self._odds.corrupt):
            return frame
        return damaged(frame[0], self._rng), frame[1]

    def _pass(self, frame: Frame, out: list[Frame]) -> None:
        if self._happens(self._odds.delay):
            due = self._step + self._rng.randrange(1, _MAX_DELAY_STEPS)
            self._held.append((due, frame))
        elif self._happens(self._odds.reorder):
            out.insert(self._rng.randrange(len(out) + 1), frame)
        else:
            out.append(frame)
