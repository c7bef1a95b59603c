"""What a cache that never evicts hits."""

from __future__ import annotations

from collections.abc import Sequence


def sequential_hits(chains: Sequence[Sequence[int]]) -> int:
    """The leading blocks of each chain that earlier chains have named, all chains together."""
    named: set[int] = set()
    hits = 0
    for chain in chains:
        for block in chain:
            if block not in named:
                break
            hits += 1
        named.update(chain)
    return hits
