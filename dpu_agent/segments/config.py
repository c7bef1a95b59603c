"""What a segment log is told when it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpu_agent.segments.layout import FIRST_BATCH, MAX_HEADER_BYTES, PAGE_BYTES
from kvlane.config import parse_bytes
from kvlane.errors import ConfigError

DIRECT_MODES = ("auto", "require", "off")
SYNC_MODES = ("group", "none")
MIN_SEGMENTS = 4
"""Two are written to, one is kept for compaction, and one is full."""


@dataclass(frozen=True, slots=True)
class SegmentLogConfig:
    """Directories and bounds; whatever is wrong is a ``ConfigError`` when it is made."""

    directories: tuple[Path, ...]
    """Each has ``capacity_bytes`` for the log; best one a device."""
    capacity_bytes: int
    segment_bytes: int = 256 << 20
    max_block_bytes: int = 4 << 20
    read_depth: int = 16
    """Reads under way at a time, for each directory."""
    write_depth: int = 8
    """Writes under way at a time, for each directory."""
    max_waiting: int = 4096
    """Items that calls may have under way in all; one more is refused."""
    sync: str = "group"
    """``group``: durable means after fdatasync. ``none``: after the write."""
    direct: str = "auto"
    """O_DIRECT: where it is had, or an error where it is not, or never."""
    compact_below: float = 0.5
    """Share of live bytes below which a segment is compacted. Compaction writes at most
    ``compact_below / (1 - compact_below)`` bytes for each that it makes room for."""

    def __post_init__(self) -> None:
        if not self.directories or len(set(self.directories)) < len(self.directories):
            raise ConfigError("directories must name one or more, each once")
        for name in ("capacity_bytes", "segment_bytes", "max_block_bytes"):
            parse_bytes(getattr(self, name))
        if self.segment_bytes % PAGE_BYTES:
            raise ConfigError(f"segment_bytes must be a multiple of {PAGE_BYTES}")
        least = FIRST_BATCH + MAX_HEADER_BYTES + self.max_block_bytes + PAGE_BYTES
        if self.max_block_bytes < 1 or self.segment_bytes < least or self.segment_bytes >= 1 << 40:
            raise ConfigError(
                f"segment_bytes ({self.segment_bytes}) must hold a block of max_block_bytes and "
                f"its header, {least} bytes, and be less than 1 TiB"
            )
        if self.max_block_bytes >= 1 << 31:
            raise ConfigError("max_block_bytes must be less than 2 GiB")
        if self.segments_per_directory < MIN_SEGMENTS:
            raise ConfigError(
                f"capacity_bytes ({self.capacity_bytes}) must hold {MIN_SEGMENTS} segments of "
                f"segment_bytes ({self.segment_bytes}); raise the one or lower the other"
            )
        self._check_choices()

    def _check_choices(self) -> None:
        for name in ("read_depth", "write_depth", "max_waiting"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        if self.direct not in DIRECT_MODES or self.sync not in SYNC_MODES:
            raise ConfigError(
                f"direct is one of {', '.join(DIRECT_MODES)}; sync of {', '.join(SYNC_MODES)}"
            )
        if not 0 < self.compact_below <= 0.9:
            raise ConfigError("compact_below must be above 0 and at most 0.9")

    @property
    def segments_per_directory(self) -> int:
        """How many segment files a directory may have."""
        return self.capacity_bytes // self.segment_bytes
