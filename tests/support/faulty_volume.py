"""A directory of the segment log whose device forgets, tears and fails; files are real."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpu_agent.segments.direct_file import SegmentFile, aligned_buffer
from dpu_agent.segments.volume import DirectoryVolume, Manifest


@dataclass
class Faults:
    """What goes wrong in all files of a log; a test changes it on the way."""

    fail_writes: int = 0
    """So many of the next writes fail."""
    fail_reads: int = 0
    fail_syncs: int = 0
    error: int = errno.EIO
    no_new_files: bool = False
    """Creating a segment fails with ENOSPC."""
    crashed: bool = False
    """The power is off: nothing works any more."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    files: list[FaultyFile] = field(default_factory=list)

    def strike(self, name: str) -> None:
        """Raise if it is time to."""
        with self.lock:
            if self.crashed:
                raise OSError(errno.EIO, "the power is off")
            left = getattr(self, name)
            if left:
                setattr(self, name, left - 1)
                raise OSError(self.error, os.strerror(self.error))

    def crash(self, rng: random.Random) -> None:
        """Power off: of what was not synced, each write is there, or not, or in part."""
        with self.lock:
            self.crashed = True
        for file in self.files:
            file.forget(rng)


@dataclass
class _Unsynced:
    offset: int
    before: bytes
    after: bytes


class FaultyFile:
    """Remembers what lay under each write, until a sync."""

    def __init__(self, inner: SegmentFile, faults: Faults) -> None:
        self._inner, self._faults = inner, faults
        self._unsynced: list[_Unsynced] = []
        self._lock = threading.Lock()
        faults.files.append(self)

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._faults.strike("fail_reads")
        self._inner.read(buffers, offset)

    def write(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._faults.strike("fail_writes")
        with self._lock:
            self._faults.strike("fail_writes")
            after = b"".join(buffers)
            self._unsynced.append(_Unsynced(offset, self._at(offset, len(after)), after))
            self._inner.write(buffers, offset)

    def sync(self) -> None:
        self._faults.strike("fail_syncs")
        with self._lock:
            self._faults.strike("fail_syncs")
            self._inner.sync()
            self._unsynced.clear()

    def nbytes(self) -> int:
        return self._inner.nbytes()

    def close(self) -> None:
        self._inner.close()

    def forget(self, rng: random.Random) -> None:
        with self._lock:
            for write in reversed(self._unsynced):
                self._put(write.offset, write.before)
            for write in self._unsynced:
                kept = rng.choice([0, len(write.after), rng.randrange(len(write.after) + 1)])
                torn = write.after[:kept] + self._at(write.offset, len(write.after))[kept:]
                self._put(write.offset, torn)
            self._unsynced.clear()

    def _at(self, offset: int, nbytes: int) -> bytes:
        buffer = aligned_buffer(nbytes)
        self._inner.read([buffer], offset)
        return bytes(buffer)

    def _put(self, offset: int, data: bytes) -> None:
        buffer = aligned_buffer(len(data))
        buffer[:] = data
        self._inner.write([buffer], offset)


class FaultyVolume:
    """``DirectoryVolume`` with faults; ``Faults`` is shared by those of a log."""

    def __init__(self, path: Path, direct: str, faults: Faults) -> None:
        self._inner, self._faults = DirectoryVolume(path, direct), faults

    @property
    def name(self) -> str:
        return self._inner.name

    def manifest(self) -> Manifest | None:
        return self._inner.manifest()

    def write_manifest(self, manifest: Manifest) -> None:
        self._inner.write_manifest(manifest)

    def segments(self) -> list[int]:
        return self._inner.segments()

    def open_segment(self, number: int) -> SegmentFile:
        return FaultyFile(self._inner.open_segment(number), self._faults)

    def create_segment(self, number: int, nbytes: int) -> SegmentFile:
        if self._faults.no_new_files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return FaultyFile(self._inner.create_segment(number, nbytes), self._faults)

    def close(self) -> None:
        self._inner.close()
