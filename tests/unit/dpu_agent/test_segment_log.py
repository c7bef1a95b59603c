"""The segment log: appends, reads, deletes, compaction, and whatever a device does to it."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
from functools import partial
from pathlib import Path

import pytest

from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.layout import FIRST_BATCH, PAGE_BYTES, SegmentState, Superblock
from dpu_agent.segments.requests import Completion, ItemStatus, Read, Record
from dpu_agent.segments.segment_log import SegmentLog
from kvlane.errors import CapacityError, ConfigError, StorageError, StorageFormatError
from tests.support.faulty_volume import Faults, FaultyVolume
from tests.support.segment_blocks import (
    TIMEOUT_S,
    Memory,
    append,
    contents,
    delete,
    fetch,
    key_of,
    payload_of,
)

BLOCK_BYTES = 64 << 10
SEGMENT_BYTES = 512 << 10


def config_for(*paths: Path, segments: int = 6, **options: object) -> SegmentLogConfig:
    for path in paths:
        path.mkdir(exist_ok=True)
    fields: dict[str, object] = {"max_block_bytes": BLOCK_BYTES, **options}
    return SegmentLogConfig(paths, segments * SEGMENT_BYTES, SEGMENT_BYTES, **fields)  # type: ignore[arg-type]


def faulty(config: SegmentLogConfig) -> tuple[SegmentLog, Faults]:
    faults = Faults()
    return SegmentLog.open(config, partial(FaultyVolume, faults=faults)), faults


def fill(log: SegmentLog, first: int = 0) -> dict[int, int]:
    """Append blocks until there is no space; number -> location."""
    memory = Memory(BLOCK_BYTES)
    locations: dict[int, int] = {}
    while True:
        number = first + len(locations)
        done = append(log, [memory.record(number, 1, BLOCK_BYTES)])
        if done.statuses != (ItemStatus.OK,):
            assert done.statuses == (ItemStatus.NO_SPACE,)
            return locations
        locations[number] = done.locations[0]


def append_one(log: SegmentLog, nbytes: int) -> Completion:
    memory = Memory(BLOCK_BYTES)
    return append(log, [memory.record(1, 1, nbytes)])


@pytest.mark.parametrize("offset", [0, 8])
@pytest.mark.parametrize("nbytes", [1, 4095, 4096, 4097, BLOCK_BYTES])
def test_bytes_come_back_from_and_to_any_address(tmp_path: Path, nbytes: int, offset: int) -> None:
    log = SegmentLog.open(config_for(tmp_path))
    memory = Memory(2 * BLOCK_BYTES)
    done = append(log, [memory.record(7, 1, nbytes, offset)])
    wanted = payload_of(7, 1, nbytes).tobytes()
    memory.bytes[:] = 0xEE
    read = log.read([Read(done.locations[0], memory.address + offset, nbytes)])
    assert log.wait(read, TIMEOUT_S).statuses == (ItemStatus.OK,)
    assert memory.bytes[offset : offset + nbytes].tobytes() == wanted
    assert set(memory.bytes[:offset].tolist() + memory.bytes[offset + nbytes :].tolist()) == {0xEE}
    log.close()


def test_many_small_blocks_share_a_batch_and_a_read(tmp_path: Path) -> None:
    log = SegmentLog.open(config_for(tmp_path))
    memory = Memory(64 * PAGE_BYTES)
    records = [memory.record(n, 1, PAGE_BYTES, n * PAGE_BYTES) for n in range(64)]
    done = append(log, records)
    assert log.usage().written_bytes < 64 * PAGE_BYTES + 6 * PAGE_BYTES
    target = Memory(64 * PAGE_BYTES)
    reads = [Read(at, target.address + n * 4096, 4096) for n, at in enumerate(done.locations)]
    assert set(log.wait(log.read(reads), TIMEOUT_S).statuses) == {ItemStatus.OK}
    assert (target.bytes == memory.bytes).all()
    log.close()


def test_a_new_record_of_a_key_takes_the_place_of_the_old(tmp_path: Path) -> None:
    log = SegmentLog.open(config_for(tmp_path / "a", tmp_path / "b"))
    memory = Memory(2 * PAGE_BYTES)
    both = append(log, [memory.record(1, 1, 100), memory.record(1, 2, 100, PAGE_BYTES)])
    assert fetch(log, both.locations[0], 4096)[0] is ItemStatus.NOT_FOUND
    assert contents(log, 4096) == {1: 2}
    delete(log, [both.locations[1]])
    log.close()
    log = SegmentLog.open(config_for(tmp_path / "a", tmp_path / "b"))
    assert contents(log, 4096) == {}
    log.close()


def test_reads_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    log = SegmentLog.open(config)
    memory = Memory(BLOCK_BYTES)
    good, bad = (append(log, [memory.record(n, 1, 5000)]).locations[0] for n in (1, 2))
    log.close()
    path = tmp_path / "segment-000001"
    data = bytearray(path.read_bytes())
    at = data.find(payload_of(2, 1, 5000).tobytes())
    data[at + 4999] ^= 1
    path.write_bytes(data)
    log = SegmentLog.open(config)
    places = range(memory.address, memory.address + 3 * 8192, 8192)
    reads = [Read(where, at, 8192) for where, at in zip((bad, good, 999), places, strict=True)]
    reads.append(Read(good, memory.address, 4999))
    done = log.wait(log.read(reads), TIMEOUT_S)
    assert done.statuses == (
        ItemStatus.BAD_CHECKSUM,
        ItemStatus.OK,
        ItemStatus.NOT_FOUND,
        ItemStatus.TOO_SHORT,
    )
    assert done.lengths[3] == 5000
    assert log.usage().checksum_failures == 1
    log.close()


def test_the_descriptor_is_readable_while_there_are_completions(tmp_path: Path) -> None:
    log = SegmentLog.open(config_for(tmp_path))
    memory = Memory(4096)
    ticket = log.append([memory.record(1, 1, 10)], durable=True)
    assert select.select([log.fileno()], [], [], TIMEOUT_S)[0]
    assert [done.ticket for done in log.poll()] == [ticket]
    assert not select.select([log.fileno()], [], [], 0)[0]
    log.close()


def test_a_full_log_takes_deletes_and_compaction_makes_room(tmp_path: Path) -> None:
    log = SegmentLog.open(config_for(tmp_path))
    locations = fill(log)
    doomed = [number for number in locations if number % 3]
    done = delete(log, [locations[number] for number in doomed])
    assert set(done.statuses) == {ItemStatus.OK}
    fragmented = log.usage().fragmentation
    assert fragmented > 0.5
    for _ in range(6):
        log.compact_once(1 << 30)
        for old, new in log.moved():
            number = next(n for n, at in locations.items() if at == old)
            locations[number] = new
    assert log.usage().fragmentation < fragmented / 2
    left = {number: 1 for number in locations if number % 3 == 0}
    assert contents(log, BLOCK_BYTES) == left
    again = fill(log, 1000)
    assert len(again) > len(doomed) // 2
    log.close()
    log = SegmentLog.open(config_for(tmp_path))
    assert contents(log, BLOCK_BYTES) == left | dict.fromkeys(again, 1)
    log.close()


def test_write_amplification_of_compaction_is_bounded(tmp_path: Path) -> None:
    """Over many turns of a log that is kept two thirds full, whatever is deleted."""
    log = SegmentLog.open(config_for(tmp_path, segments=12, compact_below=0.5))
    memory = Memory(BLOCK_BYTES)
    index: dict[int, int] = {}
    for turn in range(400):
        number = turn * 7 % 48 if turn >= 48 else turn
        if number in index:
            delete(log, [index.pop(number)], durable=False)
        done = append(log, [memory.record(number, turn, BLOCK_BYTES)], durable=False)
        if done.statuses[0] is ItemStatus.OK:
            index[number] = done.locations[0]
        log.compact_once(1 << 20)
        moves = dict(log.moved())
        index = {n: moves.get(at, at) for n, at in index.items()}
    usage = log.usage()
    assert usage.compacted_bytes <= usage.user_bytes
    assert usage.write_amplification < 2.3
    log.close()


def test_a_location_that_is_held_outlives_compaction(tmp_path: Path) -> None:
    log = SegmentLog.open(config_for(tmp_path))
    locations = fill(log)
    kept = locations.pop(0)
    delete(log, list(locations.values()))
    assert log.hold(kept)
    assert not log.hold(12345)
    for _ in range(3):
        log.compact_once(1 << 30)
        log.moved()
    assert fetch(log, kept, BLOCK_BYTES)[0] is ItemStatus.OK
    log.release(kept)
    with pytest.raises(ConfigError, match="not held"):
        log.release(kept)
    # One more may go with it: sealing ends when it ends, and the last turn may have been early.
    assert log.compact_once(1 << 30).freed_segments >= 1
    assert fetch(log, kept, BLOCK_BYTES)[0] is ItemStatus.NOT_FOUND
    assert contents(log, BLOCK_BYTES) == {0: 1}
    log.close()


def test_a_delete_by_the_old_location_ends_the_moved_record(tmp_path: Path) -> None:
    log = SegmentLog.open(config_for(tmp_path))
    locations = fill(log)
    kept = locations.pop(0)
    delete(log, list(locations.values()))
    log.compact_once(1 << 30)
    assert [old for old, _ in log.moved()] == [kept]
    assert delete(log, [kept]).statuses == (ItemStatus.OK,)
    log.close()
    log = SegmentLog.open(config_for(tmp_path))
    assert contents(log, BLOCK_BYTES) == {}
    log.close()


def test_a_disk_that_is_full_refuses_and_loses_nothing(tmp_path: Path) -> None:
    log, faults = faulty(config_for(tmp_path))
    memory = Memory(BLOCK_BYTES)
    append(log, [memory.record(0, 1, 100)])
    faults.no_new_files = True
    more = fill(log, 1)
    assert 0 < len(more) < 8
    assert log.usage().failed_directories == ()
    faults.no_new_files = False
    assert set(delete(log, list(more.values())).statuses) == {ItemStatus.OK}
    log.close()
    log = SegmentLog.open(config_for(tmp_path))
    assert contents(log, BLOCK_BYTES) == {0: 1}
    log.close()


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_write_that_fails_is_said_and_the_rest_is_kept(tmp_path: Path, writes: int) -> None:
    log, faults = faulty(config_for(tmp_path / "a", tmp_path / "b"))
    memory = Memory(BLOCK_BYTES)
    append(log, [memory.record(1, 1, 5000)])
    faults.fail_writes = writes
    failed = append(log, [memory.record(2, 1, 5000)])
    assert failed.statuses[0] is ItemStatus.IO_ERROR
    faults.fail_writes = 0
    # The other directory goes on.
    later = append(log, [memory.record(3, 1, 5000)])
    assert later.statuses == (ItemStatus.OK,)
    assert len(log.usage().failed_directories) == 1
    assert log.usage().io_errors >= 1
    log.close()
    log = SegmentLog.open(config_for(tmp_path / "a", tmp_path / "b"))
    assert contents(log, BLOCK_BYTES) == {1: 1, 3: 1}
    log.close()


def test_a_sync_that_fails_acknowledges_nothing(tmp_path: Path) -> None:
    log, faults = faulty(config_for(tmp_path))
    memory = Memory(BLOCK_BYTES)
    first = append(log, [memory.record(1, 1, 5000)])
    faults.fail_syncs = 1
    assert append(log, [memory.record(2, 1, 5000)]).statuses == (ItemStatus.IO_ERROR,)
    assert append(log, [memory.record(3, 1, 5000)]).statuses == (ItemStatus.IO_ERROR,)
    assert fetch(log, first.locations[0], 8192)[0] is ItemStatus.OK
    assert log.usage().failed_directories == (str(tmp_path),)
    log.close()


def test_a_read_that_fails_is_an_error_of_that_read(tmp_path: Path) -> None:
    log, faults = faulty(config_for(tmp_path))
    where = append_one(log, 5000).locations[0]
    faults.fail_reads = 1
    assert fetch(log, where, 8192)[0] is ItemStatus.IO_ERROR
    assert fetch(log, where, 8192)[0] is ItemStatus.OK
    log.close()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    log = SegmentLog.open(config)
    with pytest.raises(StorageError, match=rf"in use by another process \({os.getpid()}\)"):
        SegmentLog.open(config)
    log.close()
    SegmentLog.open(config).close()
    fd = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = config_for(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b").rmdir()
    with pytest.raises(ConfigError, match=r"/b: not a directory .* mount its device"):
        SegmentLog.open(config)
    # What was locked before is given back.
    SegmentLog.open(config_for(tmp_path / "a")).close()


def test_a_directory_whose_device_is_not_mounted_is_noticed(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    SegmentLog.open(config_for(a, b)).close()
    b.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"2 directories and only 1 .*empty: .*/b"):
        SegmentLog.open(config_for(a, b))
    (b / "lock").unlink()
    b.rmdir()
    (tmp_path / "elsewhere").rename(b)
    with pytest.raises(ConfigError, match="mount and name all"):
        SegmentLog.open(config_for(a))
    SegmentLog.open(config_for(a, b, c)).close()


def test_directories_of_two_logs_are_not_mixed(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    SegmentLog.open(config_for(a)).close()
    SegmentLog.open(config_for(b)).close()
    with pytest.raises(ConfigError, match="different logs"):
        SegmentLog.open(config_for(a, b))


def newer_superblock() -> bytes:
    page = bytearray(Superblock(SegmentState.OPEN, SEGMENT_BYTES, bytes(16), 1, 1).emit())
    page[4] = 2
    return bytes(page)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("segment-000009", b"\x7fELF" * 4096, "segment 9 is no segment of a kvlane log"),
        ("segment-000009", newer_superblock() * 2, "segment 9 has format 2"),
        ("segment-000009", b"short", "too short"),
        (
            "segment-000009",
            Superblock(SegmentState.OPEN, SEGMENT_BYTES, bytes(16), 1, 1).emit() * 2,
            "belongs to another log",
        ),
        ("manifest.json", b"{]", "not a manifest"),
        ("manifest.json", b'{"log_id": "00", "directories": 1}', "not a manifest"),
        (
            "manifest.json",
            b'{"log_id": "%s", "directories": 1, "format": 9}' % (b"00" * 16),
            "format 9",
        ),
    ],
)
def test_foreign_and_newer_files_are_refused(
    tmp_path: Path, name: str, data: bytes, text: str
) -> None:
    config = config_for(tmp_path)
    SegmentLog.open(config).close()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(StorageFormatError, match=text):
        SegmentLog.open(config)


def test_another_segment_size_is_refused(tmp_path: Path) -> None:
    log = SegmentLog.open(config_for(tmp_path))
    append_one(log, 10)
    log.close()
    other = SegmentLogConfig((tmp_path,), 8 << 20, 1 << 20, BLOCK_BYTES)
    with pytest.raises(StorageFormatError, match=f"segment_bytes {SEGMENT_BYTES}; set that"):
        SegmentLog.open(other)


def test_a_file_that_was_made_and_never_used_is_free(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    SegmentLog.open(config).close()
    (tmp_path / "segment-000000").write_bytes(bytes(SEGMENT_BYTES))
    log = SegmentLog.open(config)
    assert append_one(log, 10).statuses == (ItemStatus.OK,)
    assert len(list(tmp_path.glob("segment-*"))) == 2
    log.close()


def test_without_o_direct_one_warning_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real_open = os.open

    def refuses_direct(path: object, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_open(path, flags, mode)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuses_direct)
    with caplog.at_level(logging.WARNING):
        log = SegmentLog.open(config_for(tmp_path))
        fill(log)
        log.close()
    assert [record.message for record in caplog.records] == [
        f"{tmp_path}: O_DIRECT does not work here (Invalid argument); files go through the page "
        "cache, which costs memory and a copy"
    ]
    with pytest.raises(ConfigError, match="set direct to auto"):
        SegmentLog.open(config_for(tmp_path, direct="require"))


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    log = SegmentLog.open(config_for(tmp_path, max_waiting=2))
    for record in (Record(b"short", 0, 10, 0), Record(bytes(32), 0, BLOCK_BYTES + 1, 0)):
        with pytest.raises(ConfigError):
            log.append([record], durable=True)
    with pytest.raises(CapacityError):
        log.delete([1, 2, 3], durable=True)
    log.close()
    log.close()
    with pytest.raises(StorageError, match="closed"):
        log.read([])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"directories": ()}, "one or more"),
        ({"segment_bytes": 5000}, "multiple"),
        ({"segment_bytes": 1 << 16}, "must hold a block"),
        ({"capacity_bytes": 3 << 20}, "4 segments"),
        ({"sync": "maybe"}, "sync of group"),
        ({"compact_below": 0.95}, "compact_below"),
        ({"read_depth": 0}, "read_depth"),
    ],
)
def test_configurations_that_cannot_work(options: dict[str, object], text: str) -> None:
    fields: dict[str, object] = {
        "directories": (Path("x"),),
        "capacity_bytes": 8 << 20,
        "segment_bytes": 1 << 20,
        "max_block_bytes": 1 << 16,
    }
    with pytest.raises(ConfigError, match=text):
        SegmentLogConfig(**{**fields, **options})  # type: ignore[arg-type]


def test_payload_begins_at_a_page(tmp_path: Path) -> None:
    log = SegmentLog.open(config_for(tmp_path))
    append_one(log, 5000)
    log.close()
    data = (tmp_path / "segment-000001").read_bytes()
    assert data.find(payload_of(1, 1, 5000).tobytes()) == FIRST_BATCH + PAGE_BYTES


def test_a_full_log_that_is_opened_and_closed_all_the_time_takes_deletes(tmp_path: Path) -> None:
    """Each opening goes on where the last one stopped: none costs a segment."""
    config = config_for(tmp_path)
    log = SegmentLog.open(config)
    kept = dict.fromkeys(fill(log), 1)
    for number in list(kept):
        log.close()
        log = SegmentLog.open(config)
        for _ in range(4):
            location = next(r.location for r in log.records() if r.key == key_of(number))
            done = delete(log, [location])
            if done.statuses == (ItemStatus.OK,):
                break
            log.compact_once(1 << 20)
            log.moved()
        assert done.statuses == (ItemStatus.OK,), number
        del kept[number]
    assert contents(log, BLOCK_BYTES) == {}
    log.close()


def test_tombstones_leave_room_to_empty_a_segment(tmp_path: Path) -> None:
    """Single deletes of small blocks in a full log: some are refused, and then there is room."""
    log = SegmentLog.open(config_for(tmp_path))
    memory = Memory(PAGE_BYTES)
    index: dict[int, int] = {}
    while True:
        done = append(log, [memory.record(len(index), 1, PAGE_BYTES)], durable=False)
        if done.statuses[0] is not ItemStatus.OK:
            break
        index[len(index)] = done.locations[0]
    refused = 0
    for number in [n for n in index if n % 10]:
        while delete(log, [index[number]], durable=False).statuses[0] is not ItemStatus.OK:
            refused += 1
            log.compact_once(1 << 20)
            moves = dict(log.moved())
            index = {n: moves.get(at, at) for n, at in index.items()}
            assert refused < 10 * len(index), "nothing is ever free again"
        del index[number]
    assert refused
    assert contents(log, PAGE_BYTES) == dict.fromkeys(index, 1)
    log.close()
