"""A hierarchy of tiers in virtual time: set up, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache._slot_kernels import new_slot_table
from dpu_agent.cache.policy.base import EvictionPolicy
from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.planning._tier_state_kernels import (
    BLOCK,
    COUNTS,
    HIERARCHY,
    MAX_TIERS,
    NONE,
    TIER,
    TOTALS,
)
from dpu_agent.planning._walk_kernels import Windows, walk
from dpu_agent.planning.accesses import Accesses


@dataclass(frozen=True, slots=True)
class VirtualTier:
    """One tier of a hierarchy."""

    name: str
    capacity_blocks: int
    policy: str
    keeps_copies: bool
    """Whether a block that goes to a hotter tier stays here too, as in files: to write it again
    would cost more than its room."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trace found in a hierarchy; ``_tier_state_kernels`` says what the fields count."""

    tiers: tuple[VirtualTier, ...]
    counts: NDArray[np.void]
    """Shape (windows, tiers), dtype COUNTS: since the start, at the end of each window."""
    totals: NDArray[np.void]
    """Shape (windows,), dtype TOTALS: the same."""
    window_ns: int
    served: NDArray[np.int32]
    """Shape (requests, tiers): blocks of each prefix by tier; one row for all without detail."""

    def total(self, name: str) -> int:
        """A count of all tiers together, at the end."""
        return int(self.totals[name][-1])

    def of_tier(self, tier: int, name: str) -> int:
        """A count of one tier, at the end."""
        return int(self.counts[name][-1, tier])

    @property
    def prefix_hits(self) -> int:
        """Blocks in the unbroken leading hits of each request."""
        return int(self.counts["hits"][-1].sum())

    @property
    def prefix_hit_rate(self) -> float:
        """The same, by block accesses."""
        return self.prefix_hits / self.total("asked")

    @property
    def hit_rate(self) -> float:
        """Blocks that lay in some tier when they were asked for, by block accesses."""
        return (self.prefix_hits + self.total("stranded")) / self.total("asked")


MakePolicy = Callable[[str, int], EvictionPolicy]
"""A new policy by its name and the number of slots."""


class _Tables:
    """Memory of a hierarchy, empty at first."""

    def __init__(self, accesses: Accesses, tiers: Sequence[VirtualTier], make: MakePolicy) -> None:
        distinct = len(accesses.keys)
        self._make = make
        self.tiers = np.zeros(len(tiers), TIER)
        self.counts = np.zeros(len(tiers), COUNTS)
        self.totals = np.zeros(1, TOTALS)
        self.blocks = np.zeros(distinct, BLOCK)
        for name in ("parent", "asked_in", "slots"):
            self.blocks[name] = NONE
        self._kept: list[object] = [accesses]
        for row, tier in zip(self.tiers, tiers, strict=True):
            # Beyond these nothing is ever evicted, and a policy takes memory for each slot.
            self._fill(row, tier, min(tier.capacity_blocks, distinct))
        self._state = np.zeros(1, HIERARCHY)
        self._state["tiers"] = self.tiers.ctypes.data
        self._state["tier_count"] = len(tiers)
        self._state["counts"] = self.counts.ctypes.data
        self._state["totals"] = self.totals.ctypes.data
        self._state["blocks"] = self.blocks.ctypes.data
        self._state["block_count"] = distinct
        self._state["keys"] = accesses.keys.ctypes.data

    def _fill(self, row: np.void, tier: VirtualTier, slots: int) -> None:
        policy, table = self._make(tier.policy, slots), new_slot_table(slots)
        block_in = np.full(slots, NONE, np.int32)
        # The first slot is on top of the stack.
        free_slots = np.arange(slots - 1, -1, -1, dtype=np.int32)
        self._kept += [policy, table, block_in, free_slots]
        for name, value in policy.calls._asdict().items():
            row[name] = value
        row["slot_table"] = table.ctypes.data
        row["block_in"] = block_in.ctypes.data
        row["free_slots"] = free_slots.ctypes.data
        row["capacity"] = row["free"] = slots
        row["keeps_copies"] = tier.keeps_copies

    @property
    def address(self) -> int:
        """Of the hierarchy's record; valid as long as this lives."""
        return int(self._state.ctypes.data)


def run_hierarchy(
    accesses: Accesses,
    tiers: Sequence[VirtualTier],
    *,
    windows: int = 1,
    detailed: bool = False,
    make: MakePolicy = make_policy,
) -> Outcome:
    """Serve a whole trace from new tiers, hottest first; compiled, without the interpreter's lock.

    ``detailed`` keeps what each request found, and counts orphans at the end of each window.
    """
    assert 1 <= len(tiers) <= MAX_TIERS
    tables = _Tables(accesses, tiers, make)
    window_ns = int(accesses.arrivals_ns.max()) // windows + 1
    counts = np.zeros((windows, len(tiers)), COUNTS)
    totals = np.zeros(windows, TOTALS)
    rows = len(accesses.request_ends) if detailed else 1
    served = np.zeros((rows, len(tiers)), np.int32)
    if not walk(tables.address, accesses, Windows(window_ns, counts, totals, detailed), served):
        names = ", ".join(tier.policy for tier in tiers)
        raise AssertionError(f"a policy of {names} found nothing to evict")
    return Outcome(tuple(tiers), counts, totals, window_ns, served)
