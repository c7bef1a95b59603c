"""What a colder tier is kept on, as the mover sees it: a segment log, or a test's stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dpu_agent.segments.requests import Completion, Read, Record


class Medium(Protocol):
    """Writes and reads in the background; see ``SegmentLog``. No call waits."""

    def append(self, records: Sequence[Record], *, durable: bool) -> int:
        """A ticket."""

    def read(self, reads: Sequence[Read]) -> int:
        """A ticket. The capacity of each is the length of its block."""

    def delete(self, locations: Sequence[int], *, durable: bool) -> int:
        """A ticket."""

    def poll(self) -> Sequence[Completion]:
        """What has completed since the last call."""

    def moved(self) -> Sequence[tuple[int, int]]:
        """Old and new location of what was moved since the last call, whose moves have been
        followed."""


class PollableMedium(Medium, Protocol):
    """A medium of which a thread can await completions."""

    def fileno(self) -> int:
        """A descriptor that is readable while ``poll`` has something."""
