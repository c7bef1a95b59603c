"""Where values lie on an axis, and which of them are written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MOST_TICKS = 7
_SUFFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values, spread evenly or, if ``is_log``, by their logarithm."""

    low: float
    high: float
    is_log: bool = False

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        low, high, at = (self._place(each) for each in (self.low, self.high, value))
        return (at - low) / (high - low) if high > low else 0.5

    def _place(self, value: float) -> float:
        return math.log(value) if self.is_log else value

    def ticks(self) -> list[float]:
        """Round values within the range, a handful of them."""
        return self._log_ticks() if self.is_log else self._even_ticks()

    def _even_ticks(self) -> list[float]:
        step = round_step((self.high - self.low) / (_MOST_TICKS - 1))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [count * step for count in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        """1, 2 and 5 of each decade, 1 alone, or 1 of every so many decades."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for parts, stride in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
            ticks = [
                part * 10.0**decade
                for decade in range(first, last + 1)
                if decade % stride == 0
                for part in parts
            ]
            ticks = [tick for tick in ticks if self.low * 0.999 <= tick <= self.high * 1.001]
            if len(ticks) <= _MOST_TICKS:
                break
        return ticks if len(ticks) > 1 else [self.low, self.high]


def round_step(least: float) -> float:
    """The next of 1, 2, 2.5, 5, 10 and so on that is not smaller; 1 for nothing."""
    if least <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(least))
    return next(step * unit for step in _STEPS if step * unit >= least * (1 - 1e-9))


def axis_from_zero(values: Iterable[float]) -> Axis:
    """From 0 to the round value above all."""
    most = max(values, default=0.0)
    if most <= 0:
        return Axis(0.0, 1.0)
    step = round_step(most / (_MOST_TICKS - 1))
    return Axis(0.0, step * math.ceil(most / step - 1e-9))


def axis_around(values: Iterable[float], *, is_log: bool) -> Axis:
    """From the least to the largest value."""
    every = list(values) or [1.0]
    return Axis(min(every), max(every), is_log)


def tick_text(value: float) -> str:
    """A value as few characters: 2.5k, 10M, 0.05."""
    for unit, suffix in _SUFFIXES:
        if abs(value) >= unit:
            return f"{value / unit:.4g}{suffix}"
    return f"{value:.4g}"
