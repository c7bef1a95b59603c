"""What the mover counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TierFigures:
    """Blocks, since the start."""

    promoted: int = 0
    promoted_bytes: int = 0
    demoted: int = 0
    demoted_bytes: int = 0
    prefetched: int = 0
    """Of the promoted, those that nobody had asked for yet."""
    prefetched_bytes: int = 0
    prefetch_skipped: int = 0
    """Guesses that were not followed: too late, or no room or budget for them."""
    dropped: int = 0
    """Left memory without a copy: the colder tier had no room, or could not write."""
    no_room: int = 0
    """Could not come back: all of memory is pinned or being written."""
    damaged: int = 0
    """Could not be read, or not with the right checksum; they are forgotten."""
