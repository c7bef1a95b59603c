"""Tiers of blocks in plain Python, as docs/replay.md tells of them; what the kernels must equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class PlainTier:
    """Least recently used, or first in, first out; hottest tiers come first in a hierarchy."""

    capacity: int
    keeps_copies: bool
    renews: bool = True
    """Whether a use counts: without it the oldest leaves, used or not."""
    refuses: Callable[[int], bool] = lambda _block: False
    blocks: dict[int, None] = field(default_factory=dict)
    """Oldest first."""
    counts: Counter[str] = field(default_factory=Counter)

    def touch(self, block: int) -> None:
        if self.renews:
            del self.blocks[block]
            self.blocks[block] = None


@dataclass
class PlainTiers:
    """A hierarchy; serves one request after another."""

    tiers: Sequence[PlainTier]
    totals: Counter[str] = field(default_factory=Counter)
    parent: dict[int, int | None] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)

    def where(self, block: int) -> int | None:
        """The hottest tier that has a block."""
        return next((at for at, tier in enumerate(self.tiers) if block in tier.blocks), None)

    def serve(self, chain: Sequence[int]) -> list[int]:
        """One request; blocks of its prefix by tier."""
        self._learn(chain)
        found = [self.where(block) for block in chain]
        matched = found.index(None) if None in found else len(chain)
        served = [found[:matched].count(at) for at in range(len(self.tiers))]
        self.read |= set(chain[:matched])
        for tier, hits in zip(self.tiers, served, strict=True):
            tier.counts["hits"] += hits
        self.totals["asked"] += len(chain)
        for place, block in enumerate(chain):
            lies = self.where(block)
            self.totals["stranded"] += place >= matched and lies is not None
            if lies == 0:
                self.tiers[0].touch(block)
            else:
                self._bring(block, lies, is_prefix=place < matched)
        return served

    def orphans(self) -> int:
        """Blocks that lie somewhere while one before them does not."""
        return sum(not self._is_reached(block) for block in self.present())

    def present(self) -> set[int]:
        """Blocks that lie somewhere."""
        return {block for tier in self.tiers for block in tier.blocks}

    def _is_reached(self, block: int | None) -> bool:
        while block is not None:
            if self.where(block) is None:
                return False
            block = self.parent[block]
        return True

    def _learn(self, chain: Sequence[int]) -> None:
        named: set[int] = set()
        for before, block in zip([None, *chain], chain, strict=False):
            if block not in named:
                self.parent[block] = before
                named.add(block)

    def _bring(self, block: int, lies: int | None, *, is_prefix: bool) -> None:
        home = self._home(block, range(len(self.tiers) if lies is None else lies))
        if lies is not None:
            tier = self.tiers[lies]
            if home is None or tier.keeps_copies:
                tier.touch(block)
            else:
                del tier.blocks[block]
        if home is None:
            self.totals["refused"] += lies is None
        else:
            if is_prefix and lies is not None:
                self.tiers[lies].counts["promoted"] += 1
            else:
                self.tiers[home].counts["stored"] += 1
            self._put(block, home)

    def _home(self, block: int, choices: Sequence[int]) -> int | None:
        """The hottest of some tiers that takes a block in, unless one before it has it."""
        for at in choices:
            if block in self.tiers[at].blocks:
                return None
            if not self.tiers[at].refuses(block):
                return at
            self.tiers[at].counts["passed_by"] += 1
        return None

    def _put(self, block: int, home: int) -> None:
        tier = self.tiers[home]
        if len(tier.blocks) < tier.capacity:
            tier.blocks[block] = None
            return
        leaving = next(iter(tier.blocks))
        del tier.blocks[leaving]
        tier.blocks[block] = None
        colder = self._home(leaving, range(home + 1, len(self.tiers)))
        if colder is not None:
            self.tiers[colder].counts["demoted"] += 1
            self._put(leaving, colder)
        elif self.where(leaving) is None:
            self._lose(leaving)

    def _lose(self, block: int) -> None:
        self.totals["dropped"] += 1
        self.totals["unread"] += block not in self.read
        self.totals["orphaning"] += any(self.parent[other] == block for other in self.present())
        self.read.discard(block)
