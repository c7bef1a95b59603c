"""The nvme tier of an agent: a segment log below memory, and the threads that serve it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from dpu_agent.cache.policy.base import EvictionPolicy
from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.cache.store import BlockStore
from dpu_agent.config import NvmeConfig
from dpu_agent.data.state import Notices
from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.segment_log import SegmentLog
from dpu_agent.tiers.cold_tier import ColdTier
from dpu_agent.tiers.compaction import CompactionThread
from dpu_agent.tiers.lane_tier import LaneTier
from dpu_agent.tiers.mover import Pace, TierMover
from dpu_agent.tiers.prefetch import PrefetchMode
from dpu_agent.tiers.thread import TierThread
from kvlane.seams import Clock

_NOTICES = {
    PrefetchMode.NONE: Notices.NONE,
    PrefetchMode.MATCH: Notices.COLD,
    PrefetchMode.NEXT_TURN: Notices.ALL,
}
_log = logging.getLogger(__name__)


class NvmeTier:
    """Opened, it knows what was kept from earlier; started, it moves blocks."""

    def __init__(
        self,
        config: NvmeConfig,
        hot: BlockStore,
        address: int,
        *,
        seed: int,
        clock: Clock,
        new_policy: Callable[[str, int], EvictionPolicy] = make_policy,
    ) -> None:
        """``address`` is where the memory of the hot store's slots begins; ``seed`` as that of
        ``BlockStore``; ``new_policy(name, slots)`` makes the eviction policy. ``ConfigError`` and
        ``StorageError`` say why a directory cannot be used."""
        self._hot = hot
        self._clock = clock
        self._thread: TierThread | None = None
        self._compaction: CompactionThread | None = None
        self._segments = SegmentLog.open(_log_config(config, hot.block_bytes))
        try:
            self.store = self._new_store(config, seed, new_policy)
            self._tier = ColdTier(self.store, self._segments, self._hurry)
            lost = self._tier.load(self._segments.records(), clock())
        except BaseException:
            self._segments.close()
            raise
        _log.info(
            "nvme tier: %d blocks are there from earlier, %d had no room",
            self.store.stats().blocks,
            lost,
        )
        self._mode = PrefetchMode(config.prefetch)
        pace = Pace(self._mode, config.prefetch_bytes_per_s, config.demote_bytes_per_s)
        self._mover = TierMover(hot, self._tier, address, pace)
        self._compact_bytes_per_s = config.compact_bytes_per_s

    def _hurry(self) -> None:
        if self._compaction is not None:
            self._compaction.hurry()

    def _new_store(
        self, config: NvmeConfig, seed: int, new_policy: Callable[[str, int], EvictionPolicy]
    ) -> BlockStore:
        blocks = max(1, config.capacity_bytes // self._hot.block_bytes) * len(_paths(config))
        return BlockStore(
            capacity_blocks=blocks,
            block_bytes=self._hot.block_bytes,
            policy=new_policy(config.policy, blocks),
            seed=seed,
        )

    def start(self, on_death: Callable[[BaseException], None]) -> None:
        """Move blocks from now on; ``on_death(error)`` comes from the thread that has died."""
        thread = TierThread(self._mover, self._segments.fileno(), self._clock, on_death)
        self._thread = thread
        self._compaction = CompactionThread(self._segments, thread.press, self._compact_bytes_per_s)
        thread.start()
        self._compaction.start()

    def new_lane(self) -> LaneTier:
        """What one more lane hands its commands over to."""
        assert self._thread is not None
        return LaneTier(self._thread, self._hot.capacity_blocks, _NOTICES[self._mode], self._clock)

    def counters(self) -> dict[str, int]:
        """Figures, by names that begin with ``nvme_``."""
        usage = self._segments.usage()
        stats = self.store.stats()
        guesses = self._hot.guesses()
        figures = {**asdict(self._mover.figures), "blocks": stats.blocks, "evicted": stats.evicted}
        for name in ("useful", "useful_bytes", "wasted", "wasted_bytes"):
            figures[f"prefetch_{name}"] = getattr(guesses, name)
        for name in ("live_bytes", "dead_bytes", "free_bytes", "user_bytes", "written_bytes"):
            figures[name] = getattr(usage, name)
        return {f"nvme_{name}": int(value) for name, value in figures.items()}

    def close(self) -> None:
        """End the threads and give the directories back; what was written stays."""
        if self._compaction is not None:
            self._compaction.stop()
        if self._thread is not None:
            self._thread.stop()
        self._segments.close()


def _paths(config: NvmeConfig) -> tuple[Path, ...]:
    return tuple(Path(part) for part in config.directories.split(":") if part)


def _log_config(config: NvmeConfig, block_bytes: int) -> SegmentLogConfig:
    return SegmentLogConfig(
        directories=_paths(config),
        capacity_bytes=config.capacity_bytes,
        segment_bytes=config.segment_bytes,
        max_block_bytes=block_bytes,
        read_depth=config.read_depth,
        write_depth=config.write_depth,
        max_waiting=1 << 20,
        direct=config.direct,
    )
