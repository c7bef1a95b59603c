"""The nvme tier of an agent: a segment log below memory, and the threads that serve it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from dpu_agent.cache.policy.base import EvictionPolicy
from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.cache.store import BlockStore, Guesses
from dpu_agent.config import NvmeConfig
from dpu_agent.data.state import Notices
from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.requests import Usage
from dpu_agent.segments.segment_log import SegmentLog
from dpu_agent.tiers.block_codec import BlockCodec, require_zstandard
from dpu_agent.tiers.cold_tier import ColdTier
from dpu_agent.tiers.compaction import CompactionThread
from dpu_agent.tiers.compressed_medium import CompressedMedium, CompressionFigures
from dpu_agent.tiers.encoded_block import RAW, as_blocks
from dpu_agent.tiers.figures import TierFigures
from dpu_agent.tiers.lane_tier import LaneTier
from dpu_agent.tiers.mover import Pace, TierMover
from dpu_agent.tiers.prefetch import PrefetchMode
from dpu_agent.tiers.room import Room
from dpu_agent.tiers.thread import TierThread
from kvlane.processors import usable_processors
from kvlane.seams import Clock

_ROWS_PER_BLOCK = 2
"""Where blocks are compressed, files may hold more of them than their capacity says."""
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
        if config.compression != "none":
            require_zstandard(f"nvme.compression is {config.compression}")
        log_config = _log_config(config, hot.block_bytes)
        self._segments = SegmentLog.open(log_config)
        with ExitStack() as undo:
            undo.callback(self._segments.close)
            kept = list(self._segments.records())
            compressed = sum(each.encoding != RAW for each in kept)
            if compressed:
                require_zstandard(f"{compressed} blocks in {config.directories} are compressed")
            is_dense = config.compression != "none" or compressed > 0
            self.store = self._new_store(
                config, seed, new_policy, _ROWS_PER_BLOCK if is_dense else 1
            )
            self._medium = self._new_medium(config)
            undo.callback(self._medium.close)
            room = Room(self._segments, log_config, self._hurry)
            self._tier = ColdTier(self.store, self._medium, self._hurry, room.is_short)
            lost = self._tier.load(as_blocks(kept), clock())
            undo.pop_all()
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

    def _new_medium(self, config: NvmeConfig) -> CompressedMedium:
        block_bytes = self._hot.block_bytes
        return CompressedMedium(
            self._segments,
            partial(BlockCodec, config.compression_level, config.element_bytes, block_bytes),
            compresses=config.compression != "none",
            block_bytes=block_bytes,
            threads=usable_processors(),
        )

    def _new_store(
        self,
        config: NvmeConfig,
        seed: int,
        new_policy: Callable[[str, int], EvictionPolicy],
        rows_per_block: int,
    ) -> BlockStore:
        blocks = max(1, config.capacity_bytes // self._hot.block_bytes) * len(_paths(config))
        blocks *= rows_per_block
        return BlockStore(
            capacity_blocks=blocks,
            block_bytes=self._hot.block_bytes,
            policy=new_policy(config.policy, blocks),
            seed=seed,
        )

    def start(self, on_death: Callable[[BaseException], None]) -> None:
        """Move blocks from now on; ``on_death(error)`` comes from the thread that has died."""
        thread = TierThread(self._mover, self._medium.fileno(), self._clock, on_death)
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
        figures = {**asdict(self._mover.figures), **asdict(self._medium.figures)}
        figures |= {"blocks": stats.blocks, "evicted": stats.evicted}
        for name in ("useful", "useful_bytes", "wasted", "wasted_bytes"):
            figures[f"prefetch_{name}"] = getattr(guesses, name)
        for name in ("live_bytes", "dead_bytes", "free_bytes", "user_bytes", "written_bytes"):
            figures[name] = getattr(usage, name)
        return {f"nvme_{name}": int(value) for name, value in figures.items()}

    @property
    def moves(self) -> TierFigures:
        """What the mover has counted, as a copy. Any thread may ask."""
        return replace(self._mover.figures)

    @property
    def guesses(self) -> Guesses:
        """What became of blocks that came into memory on a guess. Any thread may ask."""
        return self._hot.guesses()

    @property
    def compression(self) -> CompressionFigures:
        """What the medium has counted, as a copy. Any thread may ask."""
        return replace(self._medium.figures)

    def usage(self) -> Usage:
        """Where the bytes of the segment log are. Any thread may ask."""
        return self._segments.usage()

    def close(self) -> None:
        """End the threads and give the directories back; what was written stays."""
        if self._compaction is not None:
            self._compaction.stop()
        if self._thread is not None:
            self._thread.stop()
        self._medium.close()
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
