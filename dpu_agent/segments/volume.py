"""A directory of the log: its lock, its manifest and its segment files."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from dpu_agent.segments.direct_file import DescriptorFile, SegmentFile, aligned_buffer
from dpu_agent.segments.layout import FORMAT_VERSION, LOG_ID_BYTES, PAGE_BYTES
from kvlane.errors import ConfigError, StorageError, StorageFormatError

_log = logging.getLogger(__name__)
_SEGMENT_NAME = re.compile(r"segment-([0-9]{6})")
_MANIFEST = "manifest.json"
_LOCK = "lock"
_PROBE = "probe"
_MANIFEST_KIND = "kvlane segment log"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Which log a directory belongs to."""

    log_id: str
    """In hexadecimal."""
    directories: int
    """How many the log has: one that is not mounted must not go unnoticed."""
    format: int = FORMAT_VERSION
    kind: str = _MANIFEST_KIND


class Volume(Protocol):
    """What the log asks of a directory; tests wrap it to inject faults."""

    @property
    def name(self) -> str:
        """For messages."""

    def manifest(self) -> Manifest | None:
        """Which log it belongs to; None where it is new."""

    def write_manifest(self, manifest: Manifest) -> None:
        """Belong to a log, durably."""

    def segments(self) -> list[int]:
        """Numbers of the segment files, in order."""

    def open_segment(self, number: int) -> SegmentFile:
        """An existing file."""

    def create_segment(self, number: int, nbytes: int) -> SegmentFile:
        """A new file with all its blocks allocated, its name durable; ``OSError`` leaves none."""

    def close(self) -> None:
        """Give up the lock."""


VolumeOpener = Callable[[Path, str], Volume]
"""From a directory and a mode of ``SegmentLogConfig.direct``."""


class DirectoryVolume:
    """A directory, for one process at a time."""

    def __init__(self, path: Path, direct: str) -> None:
        self._path = path
        self._lock_fd = _locked(path)
        try:
            self._flags = os.O_RDWR | os.O_CLOEXEC | _direct_flag(path, direct)
        except BaseException:
            os.close(self._lock_fd)
            raise

    @property
    def name(self) -> str:
        """Its path."""
        return str(self._path)

    def manifest(self) -> Manifest | None:
        """Read and checked."""
        path = self._path / _MANIFEST
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        return _parse_manifest(text, path)

    def write_manifest(self, manifest: Manifest) -> None:
        """In one step: the old one stays until the new one is whole."""
        beside = self._path / f"{_MANIFEST}.new"
        with beside.open("w") as file:
            json.dump(asdict(manifest), file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path / _MANIFEST)
        self._sync_names()

    def segments(self) -> list[int]:
        """By their names."""
        found = map(_SEGMENT_NAME.fullmatch, os.listdir(self._path))
        return sorted(int(match[1]) for match in found if match)

    def open_segment(self, number: int) -> SegmentFile:
        """As the file system takes it."""
        return DescriptorFile(os.open(self._segment_path(number), self._flags))

    def create_segment(self, number: int, nbytes: int) -> SegmentFile:
        """By fallocate, so that a full disk is noticed before anything is in the file."""
        path = self._segment_path(number)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, nbytes)
            os.fsync(fd)
            self._sync_names()
            return self.open_segment(number)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        finally:
            os.close(fd)

    def close(self) -> None:
        """The lock goes with its descriptor."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)

    def _segment_path(self, number: int) -> Path:
        return self._path / f"segment-{number:06d}"

    def _sync_names(self) -> None:
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _locked(path: Path) -> int:
    """A descriptor that holds the directory's lock."""
    try:
        fd = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{path}: not a directory that this user may write to ({error.strerror}); create it, "
            f"or mount its device"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise StorageError(
            f"{path}: in use by another process ({owner}); stop it, or name another directory"
        ) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def _direct_flag(path: Path, direct: str) -> int:
    """O_DIRECT if it is wanted and works; tried by a write, since some refuse no earlier."""
    if direct == "off":
        return 0
    probe = path / _PROBE
    try:
        fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DIRECT, 0o600)
        try:
            os.pwritev(fd, [aligned_buffer(PAGE_BYTES)], 0)
        finally:
            os.close(fd)
    except OSError as error:
        if direct == "require":
            raise ConfigError(
                f"{path}: no O_DIRECT ({error.strerror}); use a file system that has it, or "
                f"set direct to auto"
            ) from error
        _log.warning(
            "%s: O_DIRECT does not work here (%s); files go through the page cache, which costs "
            "memory and a copy",
            path,
            error.strerror,
        )
        return 0
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return os.O_DIRECT


def _parse_manifest(text: bytes, path: Path) -> Manifest:
    """``StorageFormatError`` where it is none of ours, or a newer one."""
    try:
        fields = json.loads(text)
        manifest = Manifest(**fields)
        ours = manifest.kind == _MANIFEST_KIND and type(manifest.directories) is int
        known = len(bytes.fromhex(manifest.log_id)) == LOG_ID_BYTES
    except (ValueError, TypeError) as error:
        raise StorageFormatError(f"{path}: not a manifest of kvlane ({error})") from error
    if not ours or not known:
        raise StorageFormatError(f"{path}: not a manifest of kvlane; name another directory")
    if manifest.format != FORMAT_VERSION:
        raise StorageFormatError(
            f"{path}: format {manifest.format}, this kvlane has {FORMAT_VERSION}; use the kvlane "
            f"that wrote it, or another directory"
        )
    return manifest
