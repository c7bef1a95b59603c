"""Opening a log: manifests compared, segments scanned, and the index made of them."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.direct_file import SegmentFile, aligned_buffer
from dpu_agent.segments.group_commit import GroupCommit
from dpu_agent.segments.layout import (
    FIRST_BATCH,
    SegmentState,
    Superblock,
    current_superblock,
)
from dpu_agent.segments.recovery import Contents, load, scan
from dpu_agent.segments.segment_table import FreeSegment, Segment
from dpu_agent.segments.state import LogState, write_superblock
from dpu_agent.segments.volume import Manifest, Volume
from kvlane.errors import CapacityError, ConfigError, StorageError, StorageFormatError

_log = logging.getLogger(__name__)
_OPEN_SEGMENTS = 2
"""One for callers, one for compaction."""


def agree_on_log(volumes: Sequence[Volume], fresh_id: bytes) -> bytes:
    """The id of the log that all directories belong to; new ones join it.

    A directory that is empty because its device is not mounted would bring deleted records back:
    what ended them may lie there. So as many must be known as there were.
    """
    manifests = [volume.manifest() for volume in volumes]
    known = [manifest for manifest in manifests if manifest is not None]
    if len({manifest.log_id for manifest in known}) > 1:
        names = ", ".join(volume.name for volume in volumes)
        raise ConfigError(f"{names}: directories of different logs; name those of one")
    least = max((manifest.directories for manifest in known), default=0)
    if len(known) < least:
        empty = [v.name for v, m in zip(volumes, manifests, strict=True) if m is None]
        raise ConfigError(
            f"the log has {least} directories and only {len(known)} are here"
            f"{' (empty: ' + ', '.join(empty) + ')' if empty else ''}; mount and name all of "
            f"them, or empty all of them to begin anew"
        )
    log_id = known[0].log_id if known else fresh_id.hex()
    wanted = Manifest(log_id, len(volumes))
    for volume, manifest in zip(volumes, manifests, strict=True):
        if manifest is None and volume.segments():
            raise StorageFormatError(
                f"{volume.name}: has segments and no manifest; move them away, or restore it"
            )
        if manifest != wanted:
            volume.write_manifest(wanted)
    return bytes.fromhex(log_id)


@dataclass(frozen=True, slots=True)
class _Found:
    """A segment file, with its contents where it is in use."""

    directory: int
    number: int
    file: SegmentFile
    superblock: Superblock | None
    contents: Contents | None = None


def find_segments(log: LogState) -> list[Segment]:
    """Fill the table from the files; segments that were open are sealed where they end."""
    names = [(d, number) for d in log.directories for number in d.volume.segments()]
    depth = log.config.read_depth * len(log.directories)
    with ThreadPoolExecutor(depth, "segments-scan") as pool:
        scanned = pool.map(lambda name: _look_at(log, name[0].number, name[1]), names)
        found = list(scanned)
    for each in found:
        _take_in(log, each)
    return list(log.table.in_use.values())


def _look_at(log: LogState, directory: int, number: int) -> _Found:
    volume = log.directories[directory].volume
    where = f"{volume.name}: segment {number}"
    try:
        file = volume.open_segment(number)
        if file.nbytes() < FIRST_BATCH:
            raise StorageFormatError("is too short to be a segment; move it away")
        superblock = current_superblock(_pages(file, 0, FIRST_BATCH))
        if superblock is not None:
            _check(superblock, log, file)
        if superblock is None or superblock.state is SegmentState.FREE:
            return _Found(directory, number, file, superblock)
        return _Found(directory, number, file, superblock, _scan(file, superblock))
    except OSError as error:
        raise StorageError(f"{where}: cannot be read ({error}); look at the device") from error
    except StorageFormatError as error:
        raise StorageFormatError(f"{where} {error}") from error


def _check(superblock: Superblock, log: LogState, file: SegmentFile) -> None:
    if superblock.log_id != log.log_id:
        raise StorageFormatError("belongs to another log; move it away")
    if superblock.segment_bytes != log.config.segment_bytes:
        raise StorageFormatError(
            f"was made with segment_bytes {superblock.segment_bytes}; set that, or empty all "
            f"directories to begin anew"
        )
    if file.nbytes() < superblock.segment_bytes:
        raise StorageFormatError("is shorter than it was made; restore it, or move it away")


def _scan(file: SegmentFile, superblock: Superblock) -> Contents:
    steps = scan(superblock)
    try:
        ask = next(steps)
        while True:
            ask = steps.send(_pages(file, ask.offset, ask.nbytes))
    except StopIteration as stop:
        contents: Contents = stop.value
        return contents


def _pages(file: SegmentFile, offset: int, nbytes: int) -> bytes:
    buffer = aligned_buffer(nbytes)
    file.read([buffer], offset)
    return bytes(buffer)


def _take_in(log: LogState, found: _Found) -> None:
    superblock, contents = found.superblock, found.contents
    if superblock is not None:
        table = log.table
        table.next_incarnation = max(table.next_incarnation, superblock.incarnation + 1)
    if superblock is None or contents is None:
        revision = 0 if superblock is None else superblock.revision
        log.table.free[found.directory].append(FreeSegment(found.number, revision, found.file))
        return
    segment = Segment(
        found.directory, found.number, superblock.incarnation, superblock.revision, found.file
    )
    load(segment, contents)
    log.table.add(segment)
    if contents.damaged or contents.torn:
        _log.warning(
            "%s: segment %d: %d batches were torn and are dropped, %d pages are damaged",
            log.directories[found.directory].volume.name,
            found.number,
            contents.torn,
            contents.damaged,
        )
    segment.state = superblock.state
    segment.commit = GroupCommit(segment.end)


def keep_room(log: LogState) -> None:
    """A free file in each directory, so that deletes and compaction go on where the disk is full
    of something else."""
    for directory, free in zip(log.directories, log.table.free, strict=True):
        used = {s.number for s in log.table.in_use.values() if s.directory == directory.number}
        if free or len(used) >= log.config.segments_per_directory:
            continue
        number = next(n for n in range(len(used) + 1) if n not in used)
        try:
            file = directory.volume.create_segment(number, log.config.segment_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise CapacityError(
                f"{directory.volume.name}: no room for a segment of {log.config.segment_bytes} "
                f"bytes ({error.strerror}); make room, or lower segment_bytes"
            ) from error
        free.append(FreeSegment(number, 0, file))


def reopen(log: LogState, segments: Sequence[Segment]) -> list[list[Segment]]:
    """Seal what was open, but for two of each directory: those with most room, that one first.

    Where none was open and none is free, the sealed one with most room is opened again: without
    room for a tombstone or a copy, nothing could ever become free.

    They go on where they end, under a new revision: behind that lie batches of the last one that
    look valid, and were never acknowledged.
    """
    kept: list[list[Segment]] = [[] for _ in log.directories]
    was_open = [s for s in segments if s.state is SegmentState.OPEN]
    for directory, free in zip(log.directories, log.table.free, strict=True):
        own = [s for s in segments if s.directory == directory.number]
        if own and not free and not any(s in was_open for s in own):
            was_open.append(min(own, key=lambda each: each.end))
    for segment in sorted(was_open, key=lambda each: each.end):
        goes_on = len(kept[segment.directory]) < _OPEN_SEGMENTS
        state = SegmentState.OPEN if goes_on else SegmentState.SEALED
        segment.file.sync()
        write_superblock(segment.file, log, segment, state, segment.end)
        segment.file.sync()
        segment.state = state
        if goes_on:
            # A number that was lost in the crash must not be given to another record.
            segment.entries.skip_to(segment.shadowed_ordinals)
            kept[segment.directory].append(segment)
    return kept


def check_descriptors(config: SegmentLogConfig, soft_limit: int) -> None:
    """``ConfigError`` where the process may not open a file for each segment."""
    wanted = config.segments_per_directory * len(config.directories) + 64
    if wanted > soft_limit:
        raise ConfigError(
            f"segment_bytes ({config.segment_bytes}): needs {wanted} file descriptors and this "
            f"process may have {soft_limit}; raise segment_bytes, or the limit (ulimit -n)"
        )
