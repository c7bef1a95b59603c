"""Where time and randomness come in: cores never read a clock or a generator themselves."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Monotonic time. The real one is ``time.monotonic_ns``; a simulation has its own."""

    def __call__(self) -> int:
        """Nanoseconds since an arbitrary start; never goes back."""


class Rng(Protocol):
    """The part of ``random.Random`` that the project uses; always seeded, always passed in."""

    def random(self) -> float:
        """A float in [0, 1)."""

    def getrandbits(self, k: int, /) -> int:
        """An integer of ``k`` random bits."""

    def randrange(self, start: int, stop: int, /) -> int:
        """An integer in [start, stop)."""
