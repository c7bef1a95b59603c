"""The block store as its rules read, in dicts and lists: slow, obvious, without slot numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvlane.capsule import KeyStatus


@dataclass(eq=False)
class ModelBlock:
    """A block on its way, published, or deleted while readers hold it."""

    key: bytes
    length: int
    checksum: int = 0
    pins: int = 0


class StoreModel:
    """LRU store; where ``BlockStore`` speaks of slots, it speaks of blocks."""

    def __init__(self, capacity_blocks: int, block_bytes: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.block_bytes = block_bytes
        self.published: dict[bytes, ModelBlock] = {}
        """Least recently used first."""
        self.writing: dict[bytes, ModelBlock] = {}
        self.condemned: list[ModelBlock] = []
        self.counted: Counter[str] = Counter()

    def exist(self, keys: Sequence[bytes]) -> list[KeyStatus]:
        return [KeyStatus.OK if k in self.published else KeyStatus.NOT_FOUND for k in keys]

    def match(self, keys: Sequence[bytes]) -> int:
        statuses = self.exist(keys)
        return next((i for i, s in enumerate(statuses) if s != KeyStatus.OK), len(keys))

    def pin(self, keys: Sequence[bytes]) -> list[ModelBlock | None]:
        found = [self.published.get(key) for key in keys]
        for block in found:
            self.counted["hits" if block else "misses"] += 1
            if block:
                block.pins += 1
                self.published[block.key] = self.published.pop(block.key)
        return found

    def unpin(self, blocks: Sequence[ModelBlock]) -> None:
        for block in blocks:
            block.pins -= 1
            if block in self.condemned and block.pins == 0:
                self.condemned.remove(block)

    def reserve(
        self, keys: Sequence[bytes], lengths: Sequence[int]
    ) -> list[tuple[KeyStatus, ModelBlock | None]]:
        """Status and new block for each key, as if one came after the other, except that no
        block is evicted whose key is asked for in the same batch."""
        wanted = {key for key, n in zip(keys, lengths, strict=True) if self._fits(n)}
        spared = wanted & set(self.published)
        return [self._reserve_one(k, n, spared) for k, n in zip(keys, lengths, strict=True)]

    def _fits(self, length: int) -> bool:
        return 0 < length <= self.block_bytes

    def _reserve_one(
        self, key: bytes, length: int, spared: set[bytes]
    ) -> tuple[KeyStatus, ModelBlock | None]:
        if not self._fits(length):
            return KeyStatus.BAD_LENGTH, None
        if key in self.published or key in self.writing:
            self.counted["already_stored"] += 1
            return KeyStatus.EXISTS, None
        if len(self.published) + len(self.writing) + len(self.condemned) == self.capacity_blocks:
            victims = (b for b in self.published.values() if not b.pins and b.key not in spared)
            victim = next(victims, None)
            if victim is None:
                self.counted["refused"] += 1
                return KeyStatus.NO_SPACE, None
            del self.published[victim.key]
            self.counted["evicted"] += 1
        self.writing[key] = ModelBlock(key, length)
        return KeyStatus.OK, self.writing[key]

    def publish(self, blocks: Sequence[ModelBlock], checksums: Sequence[int]) -> None:
        for block, checksum in zip(blocks, checksums, strict=True):
            block.checksum = checksum
            self.published[block.key] = self.writing.pop(block.key)
            self.counted["stored"] += 1

    def abort(self, blocks: Sequence[ModelBlock]) -> None:
        for block in blocks:
            del self.writing[block.key]
            self.counted["aborted"] += 1

    def delete(self, keys: Sequence[bytes]) -> list[KeyStatus]:
        statuses: list[KeyStatus] = []
        for key in keys:
            block = self.published.pop(key, None)
            statuses.append(KeyStatus.OK if block else KeyStatus.NOT_FOUND)
            if block:
                self.counted["deleted"] += 1
                if block.pins:
                    self.condemned.append(block)
        return statuses

    def stats(self) -> dict[str, int]:
        """The fields of ``StoreStats``."""
        counters = ("hits", "misses", "stored", "already_stored", "evicted", "deleted")
        held = [*self.published.values(), *self.condemned]
        return {
            "capacity_blocks": self.capacity_blocks,
            "block_bytes": self.block_bytes,
            "blocks": len(self.published),
            "bytes": sum(block.length for block in self.published.values()),
            "pinned": sum(block.pins > 0 for block in held),
            "writing": len(self.writing),
            "policy_faults": 0,
            **{name: self.counted[name] for name in (*counters, "aborted", "refused")},
        }
