"""Which request brings a block first, so that concurrency changes no hit count.

Replayed one after another, a request hits what the requests before it stored. To keep
that true of many at once, the first request to name a block owns it until it is done,
and any later one that names it waits. Requests register in the trace's order, so they
only ever wait for earlier ones and cannot wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """A request's place in the order."""

    unbounded_hits: int
    """Leading blocks that earlier requests named: the hits of a cache that never evicts."""
    earlier: tuple[asyncio.Event, ...]
    """Set when the requests that may still be storing blocks of this one are done."""
    owned: tuple[int, ...]
    """Blocks that this request is the first to name."""
    done: asyncio.Event


class ArrivalOrder:
    """Remembers every block named so far, and who is storing it."""

    def __init__(self) -> None:
        self._named: set[int] = set()
        self._storing: dict[int, asyncio.Event] = {}

    def register(self, block_ids: Sequence[int]) -> Turn:
        """Take the next request of the trace; ``release`` it when it is done."""
        named, storing = self._named, self._storing
        hits = 0
        while hits < len(block_ids) and block_ids[hits] in named:
            hits += 1
        earlier = dict.fromkeys(storing[block] for block in block_ids if block in storing)
        owned = tuple(dict.fromkeys(block for block in block_ids if block not in named))
        done = asyncio.Event()
        named.update(owned)
        storing.update(dict.fromkeys(owned, done))
        return Turn(hits, tuple(earlier), owned, done)

    def release(self, turn: Turn) -> None:
        """The request has stored what it had to, or has failed."""
        for block in turn.owned:
            del self._storing[block]
        turn.done.set()
