"""What callers hand to the log, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from dpu_agent.segments.layout import TAG_BYTES
from kvlane.errors import ConfigError
from kvlane.limits import KEY_BYTES


class ItemStatus(IntEnum):
    """How one record, read or delete ended."""

    OK = 0
    NOT_FOUND = 1
    """The location was never given, or its record was deleted or moved away."""
    NO_SPACE = 2
    """No directory has room: delete, and compact."""
    TOO_SHORT = 3
    """Read: the capacity is less than the record's length."""
    BAD_CHECKSUM = 4
    """Read: these are not the bytes that were appended."""
    IO_ERROR = 5
    """The device failed. An append may be found after a restart all the same."""


@dataclass(frozen=True, slots=True)
class Record:
    """A block to append; its memory stays untouched until the ticket completes."""

    key: bytes
    address: int
    length: int
    checksum: int
    """CRC-32 of the bytes (``kvlane.rawmem.crc32``)."""
    tag: bytes = bytes(TAG_BYTES)
    encoding: int = 0
    """The caller's 16 bits about how the bytes are to be read."""

    def validate(self, max_block_bytes: int) -> None:
        """``ConfigError`` unless the log can keep it."""
        if len(self.key) != KEY_BYTES or len(self.tag) != TAG_BYTES:
            raise ConfigError(f"a key has {KEY_BYTES} bytes and a tag {TAG_BYTES}; pad them")
        if not 0 < self.length <= max_block_bytes:
            raise ConfigError(
                f"a record of {self.length} bytes; 1 to {max_block_bytes} (max_block_bytes) fit"
            )


@dataclass(frozen=True, slots=True)
class Read:
    """A location, and the memory that its bytes go to."""

    location: int
    address: int
    capacity: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A record that the log holds."""

    key: bytes
    location: int
    length: int
    checksum: int
    tag: bytes
    encoding: int


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a ticket, item by item in the order of the call."""

    ticket: int
    statuses: tuple[ItemStatus, ...]
    locations: tuple[int, ...]
    lengths: tuple[int, ...]
    """Bytes of each record, where it was found."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Where the bytes of a log are."""

    capacity_bytes: int
    live_bytes: int
    dead_bytes: int
    """Written and of no use any more, headers and tails of sealed segments included."""
    free_bytes: int
    records: int
    user_bytes: int
    """Payload that callers appended since the log was opened."""
    written_bytes: int
    """What went to the files meanwhile."""
    compacted_bytes: int
    checksum_failures: int
    io_errors: int
    failed_directories: tuple[str, ...]

    @property
    def fragmentation(self) -> float:
        """Share of the used bytes that are dead."""
        used = self.live_bytes + self.dead_bytes
        return self.dead_bytes / used if used else 0.0

    @property
    def write_amplification(self) -> float:
        """Bytes written for each that callers appended."""
        return self.written_bytes / self.user_bytes if self.user_bytes else 1.0
