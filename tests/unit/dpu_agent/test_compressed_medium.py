"""A log whose blocks lie compressed: callers see blocks, in order, wherever they are moved."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.requests import Completion, ItemStatus, Read, Record
from dpu_agent.segments.segment_log import SegmentLog
from dpu_agent.tiers.block_codec import BlockCodec
from dpu_agent.tiers.compressed_medium import CompressedMedium
from dpu_agent.tiers.encoded_block import RAW, ZSTD, BlockHeader, as_blocks
from dpu_agent.tiers.medium import PollableMedium
from kvlane.errors import ConfigError
from kvlane.rawmem import crc32
from tests.support.cold_payloads import BlockMemory, noise, numbers
from tests.support.faulty_volume import Faults, FaultyVolume
from tests.support.segment_blocks import TIMEOUT_S, key_of
from tests.support.simulated_medium import SimulatedMedium

BLOCK_BYTES = 1 << 20
LENGTHS = (1, 100, 4096, 4097, 65536, 300_001, BLOCK_BYTES)
OK, BAD = ItemStatus.OK, ItemStatus.BAD_CHECKSUM
SEGMENT_BYTES = 4 << 20


class Rig:
    """A medium over a log, and slots of memory."""

    def __init__(
        self,
        log: PollableMedium,
        *,
        compresses: bool = True,
        codec: type[BlockCodec] = BlockCodec,
    ) -> None:
        self.log = log
        new_codec = partial(codec, 1, 2, BLOCK_BYTES)
        self.medium = CompressedMedium(
            log, new_codec, compresses=compresses, block_bytes=BLOCK_BYTES, threads=2
        )
        self.memory = BlockMemory(48, BLOCK_BYTES)
        self.done: dict[int, Completion] = {}

    def turn(self) -> None:
        """Wait until there is something to do, and do it."""
        assert select.select([self.medium], [], [], TIMEOUT_S)[0]
        self.done |= {done.ticket: done for done in self.medium.poll()}

    def wait(self, ticket: int) -> Completion:
        while ticket not in self.done:
            self.turn()
        return self.done.pop(ticket)

    def append(self, *blocks: np.ndarray, first: int = 0, durable: bool = True) -> Completion:
        """Blocks under the keys ``first`` and on, from the first slots."""
        records = [self.memory.record(n, first + n, block) for n, block in enumerate(blocks)]
        return self.wait(self.medium.append(records, durable=durable))

    def read(self, *wanted: tuple[int, int]) -> list[tuple[ItemStatus, bytes]]:
        """Locations and lengths; what came into the first slots."""
        for slot in range(len(wanted)):
            self.memory.put(slot, np.zeros(0, np.uint8))
        reads = [
            Read(place, self.memory.address(slot), nbytes)
            for slot, (place, nbytes) in enumerate(wanted)
        ]
        done = self.wait(self.medium.read(reads))
        assert done.lengths == tuple(nbytes for _, nbytes in wanted)
        assert all(self.memory.is_untouched(n, nbytes) for n, (_, nbytes) in enumerate(wanted))
        return [
            (status, self.memory.content(slot, wanted[slot][1]))
            for slot, status in enumerate(done.statuses)
        ]


def open_log(folder: Path, segments: int = 10, faults: Faults | None = None) -> SegmentLog:
    config = SegmentLogConfig(
        (folder,), segments * SEGMENT_BYTES, SEGMENT_BYTES, max_block_bytes=BLOCK_BYTES
    )
    if faults is None:
        return SegmentLog.open(config)
    return SegmentLog.open(config, partial(FaultyVolume, faults=faults))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(open_log(tmp_path))
    yield made
    made.medium.close()
    made.log.close()  # type: ignore[attr-defined]


def close(rig: Rig) -> None:
    rig.medium.close()
    rig.log.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("compresses", [True, False])
def test_blocks_of_any_length_and_kind_come_back(tmp_path: Path, compresses: bool) -> None:
    rig = Rig(open_log(tmp_path), compresses=compresses)
    blocks = [kind(n, n) for n in LENGTHS for kind in (noise, numbers)]
    done = rig.append(*blocks)
    assert done.statuses == (OK,) * len(blocks)
    assert done.lengths == tuple(map(len, blocks))
    wanted = [(place, len(block)) for place, block in zip(done.locations, blocks, strict=True)]
    # One at a time, then all at once in another order: neighbours are read together.
    for each, block in zip(wanted, blocks, strict=True):
        assert rig.read(each) == [(OK, block.tobytes())]
    assert rig.read(*wanted[::-1]) == [(OK, block.tobytes()) for block in blocks[::-1]]
    close(rig)


def test_figures_say_what_became_shorter(rig: Rig) -> None:
    blocks = [numbers(1, BLOCK_BYTES), noise(2, BLOCK_BYTES), numbers(3, 100)]
    done = rig.append(*blocks)
    rig.read(*((done.locations[n], len(blocks[n])) for n in range(3)))
    figures = rig.medium.figures
    assert (figures.compressed, figures.stored_raw, figures.decompressed) == (1, 2, 1)
    assert figures.plain_bytes == sum(map(len, blocks))
    assert figures.stored_bytes < figures.plain_bytes - BLOCK_BYTES // 4
    assert figures.compress_cpu_us > 0
    assert figures.decompress_cpu_us > 0
    assert isinstance(rig.log, SegmentLog)
    assert rig.log.usage().user_bytes == figures.stored_bytes


def test_nothing_to_append_is_soon_done(rig: Rig) -> None:
    assert rig.append().statuses == ()


def test_a_block_that_the_log_cannot_keep_is_refused_at_once(rig: Rig) -> None:
    record = rig.memory.record(0, 1, numbers(1, BLOCK_BYTES))
    too_long = Record(record.key, record.address, BLOCK_BYTES + 1, 0)
    with pytest.raises(ConfigError, match=str(BLOCK_BYTES)):
        rig.medium.append([record, too_long], durable=True)


def test_deleted_blocks_are_not_found(rig: Rig) -> None:
    block = numbers(1, 65536)
    done = rig.append(block, noise(2, 65536))
    assert rig.wait(rig.medium.delete([done.locations[0]], durable=True)).statuses == (OK,)
    reads = [Read(place, rig.memory.address(0), 65536) for place in done.locations]
    statuses = rig.wait(rig.medium.read(reads)).statuses
    assert statuses == (ItemStatus.NOT_FOUND, OK)


@pytest.mark.parametrize("compresses", [True, False])
def test_both_kinds_are_read_after_a_restart_with_any_setting(
    tmp_path: Path, compresses: bool
) -> None:
    rig = Rig(open_log(tmp_path))
    block, raw = numbers(1, 300_000), noise(2, 300_000)
    rig.append(block, raw)
    close(rig)
    again = Rig(open_log(tmp_path), compresses=compresses)
    assert isinstance(again.log, SegmentLog)
    kept = {each.key: each for each in again.log.records()}
    assert [kept[key_of(n)].encoding for n in (0, 1)] == [ZSTD, RAW]
    for each in as_blocks(kept.values()):
        number = int.from_bytes(each.key, "little")
        wanted = (block, raw)[number].tobytes()
        assert again.read((each.location, each.length)) == [(OK, wanted)]
        assert crc32(0, again.memory.address(0), each.length) == each.checksum
    close(again)


def test_blocks_that_were_compacted_are_read_where_they_are_now(rig: Rig) -> None:
    blocks = [numbers(n, 400_000) for n in range(40)]
    done = rig.append(*blocks)
    places = dict(enumerate(done.locations))
    doomed = [n for n in range(40) if n % 8]
    rig.wait(rig.medium.delete([places[n] for n in doomed], durable=False))
    assert isinstance(rig.log, SegmentLog)
    assert rig.log.compact_once(1 << 30).moved_bytes
    new_of = dict(rig.medium.moved())
    assert new_of
    for number in range(0, 40, 8):
        place = new_of.get(places[number], places[number])
        assert rig.read((place, 400_000)) == [(OK, blocks[number].tobytes())]


def test_a_full_log_is_told_and_takes_no_harm(tmp_path: Path) -> None:
    rig = Rig(open_log(tmp_path, segments=4))
    there: dict[int, int] = {}
    number = 0
    while True:
        done = rig.append(numbers(number, BLOCK_BYTES), first=number)
        if done.statuses != (OK,):
            break
        there[number] = done.locations[0]
        number += 1
    assert done.statuses == (ItemStatus.NO_SPACE,)
    assert len(there) > 3 * SEGMENT_BYTES // BLOCK_BYTES, "compressed, more fit"
    for number, place in there.items():
        assert rig.read((place, BLOCK_BYTES)) == [(OK, numbers(number, BLOCK_BYTES).tobytes())]
    close(rig)


def test_a_device_that_fails_is_told(tmp_path: Path) -> None:
    faults = Faults()
    rig = Rig(open_log(tmp_path, faults=faults))
    good = rig.append(numbers(1, 65536))
    faults.fail_reads = 1
    reads = [Read(good.locations[0], rig.memory.address(0), 65536)]
    assert rig.wait(rig.medium.read(reads)).statuses == (ItemStatus.IO_ERROR,)
    faults.fail_writes, faults.error = 2, errno.EIO
    assert rig.append(numbers(2, 65536), first=1).statuses == (ItemStatus.IO_ERROR,)
    assert rig.read((good.locations[0], 65536)) == [(OK, numbers(1, 65536).tobytes())]
    close(rig)


def test_bytes_that_rot_in_the_file_are_bad(tmp_path: Path) -> None:
    rig = Rig(open_log(tmp_path))
    block = numbers(1, 65536)
    done = rig.append(block)
    (path,) = (path for path in tmp_path.glob("segment-*") if b"KVZB" in path.read_bytes())
    contents = path.read_bytes()
    begin = contents.rindex(b"KVZB")
    assert contents.index(b"KVZB") < begin, "the tag is the same"

    def put(at: int, value: int) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([value]))
            file.flush()
            os.fsync(file.fileno())

    last = begin + rig.medium.figures.stored_bytes - 1

    @given(at=st.integers(begin, last), flip=st.integers(1, 255))
    def rot(at: int, flip: int) -> None:
        put(at, contents[at] ^ flip)
        assert read_unchecked(rig, done.locations[0], 65536)[0][0] is BAD
        put(at, contents[at])

    rot()
    assert rig.read((done.locations[0], 65536)) == [(OK, block.tobytes())]
    close(rig)


def read_unchecked(rig: Rig, location: int, nbytes: int) -> list[tuple[ItemStatus, bytes]]:
    done = rig.wait(rig.medium.read([Read(location, rig.memory.address(0), nbytes)]))
    return [(done.statuses[0], rig.memory.content(0, nbytes))]


def crafted(rig: Rig, payload: bytes) -> int:
    """Append bytes as a compressed block, with the log's own checksum right; the location."""
    data = np.frombuffer(payload, np.uint8)
    rig.memory.put(0, data)
    address = rig.memory.address(0)
    record = Record(key_of(1), address, len(data), crc32(0, address, len(data)), encoding=ZSTD)
    assert isinstance(rig.log, SegmentLog)
    done = rig.log.wait(rig.log.append([record], durable=True))
    return done.locations[0]


@pytest.mark.parametrize(
    "payload",
    [
        b"x",
        bytes(16),
        bytes(5000),
        BlockHeader(65536, 0, 2).emit(),
        BlockHeader(65536, 0, 2).emit() + b"\x28\xb5\x2f\xfd",
        # Says that it holds 1 TiB: magic, descriptor, content size, one RLE block.
        BlockHeader(65536, 0, 2).emit()
        + b"\x28\xb5\x2f\xfd\xe0"
        + (1 << 40).to_bytes(8, "little")
        + b"\x03\x00\x10\x41",
    ],
)
def test_what_is_no_compressed_block_is_bad_and_stays_in_its_slot(rig: Rig, payload: bytes) -> None:
    location = crafted(rig, payload)
    rig.memory.put(0, np.zeros(65536, np.uint8))
    done = rig.wait(rig.medium.read([Read(location, rig.memory.address(0), 65536)]))
    assert done.statuses == (BAD,)
    assert rig.memory.is_untouched(0, 65536)
    assert rig.medium.figures.decompressed == 0


def test_a_block_that_looks_like_a_compressed_one_is_a_block_like_others(rig: Rig) -> None:
    """What a host stores says nothing of how it is to be read."""
    codec, memory = BlockCodec(1, 2, BLOCK_BYTES), BlockMemory(1, BLOCK_BYTES)
    block = numbers(1, 65536)
    memory.put(0, block)
    target = np.zeros(BLOCK_BYTES, np.uint8)
    checksum = crc32(0, memory.address(0), 65536)
    stored = codec.encode(memory.address(0), 65536, checksum, memoryview(target))
    posing = target[:stored].copy()
    done = rig.append(posing)
    assert rig.read((done.locations[0], stored)) == [(OK, posing.tobytes())]
    assert rig.medium.figures.decompressed == 0


class _Refusing(BlockCodec):
    def encode(self, address: int, length: int, checksum: int, target: memoryview) -> int:
        raise MemoryError

    def decode(self, address: int, stored: int, length: int) -> bool:
        raise MemoryError


def test_what_cannot_be_compressed_is_stored_as_it_is(tmp_path: Path) -> None:
    rig = Rig(open_log(tmp_path), codec=_Refusing)
    block = numbers(1, 65536)
    done = rig.append(block)
    assert rig.read((done.locations[0], 65536)) == [(OK, block.tobytes())]
    assert rig.medium.figures.stored_raw == 1
    close(rig)


def test_what_cannot_be_decompressed_is_told(tmp_path: Path) -> None:
    rig = Rig(open_log(tmp_path))
    done = rig.append(numbers(1, 65536))
    rig.medium.close()
    again = Rig(rig.log, codec=_Refusing)
    assert read_unchecked(again, done.locations[0], 65536)[0][0] is BAD
    close(again)


class _Slow(BlockCodec):
    """Compresses the first block that any of these is given when it is told to, and not before."""

    go = threading.Event()
    is_first = True

    def encode(self, address: int, length: int, checksum: int, target: memoryview) -> int:
        if _Slow.is_first:
            _Slow.is_first = False
            assert _Slow.go.wait(TIMEOUT_S)
        return super().encode(address, length, checksum, target)


class PolledMedium(SimulatedMedium):
    """With a descriptor that is readable while something has been done."""

    def __init__(self) -> None:
        super().__init__()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    def perform(self, position: int = 0) -> None:
        super().perform(position)
        os.eventfd_write(self._fd, 1)


def until_pending(rig: Rig, count: int) -> None:
    """Until so many things were asked of the simulated medium."""
    assert isinstance(rig.log, PolledMedium)
    while len(rig.log.pending) < count:
        rig.turn()


def test_the_log_sees_appends_in_the_order_in_which_they_were_asked_for(tmp_path: Path) -> None:
    _Slow.go, _Slow.is_first = threading.Event(), True
    rig = Rig(open_log(tmp_path), codec=_Slow)
    first = rig.memory.record(0, 7, numbers(1, 65536))
    second = rig.memory.record(1, 7, numbers(2, 65536))
    tickets = [rig.medium.append([record], durable=True) for record in (first, second)]
    _Slow.go.set()
    places = [rig.wait(ticket).locations[0] for ticket in tickets]
    reads = [Read(place, rig.memory.address(2), 65536) for place in places]
    statuses = [rig.wait(rig.medium.read([read])).statuses[0] for read in reads]
    assert statuses == [ItemStatus.NOT_FOUND, OK], "the later one has taken the key"
    assert rig.memory.content(2, 65536) == numbers(2, 65536).tobytes()
    close(rig)


def test_few_blocks_are_compressed_before_those_are_written() -> None:
    rig = Rig(PolledMedium())
    assert isinstance(rig.log, PolledMedium)
    records = [rig.memory.record(n, n, numbers(n, BLOCK_BYTES)) for n in range(20)]
    ticket = rig.medium.append(records, durable=True)
    until_pending(rig, 16)
    assert rig.medium.figures.compressed == 16
    while ticket not in rig.done:
        if rig.log.pending:
            rig.log.perform()
        rig.turn()
    done = rig.done.pop(ticket)
    assert done.statuses == (OK,) * 20
    assert rig.medium.figures.compressed == 20
    rig.medium.close()
