"""What a policy answers where a call tells it nothing."""

from __future__ import annotations

from kvlane.calls import exported


def _nothing(_context: int, _first: int, _second: int, _third: int) -> int:
    return 0


NOTHING = exported(_nothing)
