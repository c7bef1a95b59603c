"""Memory by address does what zlib, slices and numpy do, compiled and as plain Python."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlane.jit import kernel
from kvlane.rawmem import (
    _named_for,
    bytes_at,
    copy,
    copy_past_cache,
    crc32,
    crc32_sliced,
    record_accessor,
)
from tests.support.repository import run_python

DATA = np.frombuffer(np.random.default_rng(7).bytes(5000), np.uint8)
ROW = np.dtype([("id", "i8"), ("small", "u1"), ("wide", "<u4"), ("tail", "i8")])

row_at = record_accessor(ROW)

Crc = Callable[[int, int, int], int]


def plain_crc32(seed: int, data: bytes) -> int:
    """CRC-32 bit by bit, as its definition says."""
    crc = seed ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@kernel
def sum_bytes(address: int, length: int) -> int:
    total = 0
    for byte in bytes_at(address, length):
        total += int(byte)
    return total


@kernel
def fill_bytes(address: int, length: int, value: int) -> None:
    data = bytes_at(address, length)
    for i in range(length):
        data[i] = value


@kernel
def chain_rows(table: int, count: int) -> int:
    """Write every field through the accessor, and read one back."""
    total = 0
    for i in range(count):
        row = row_at(table, i)
        row.id = i - 1
        row.small = i + 250
        row.wide = 4000000000 + i
        row_at(table, i).tail = row.id * 10
        total += row.tail
    return total


@pytest.mark.parametrize("crc", [crc32, crc32_sliced], ids=["crc32", "crc32_sliced"])
class TestCrc32:
    @pytest.mark.parametrize("seed", [0, 1, 0xDEADBEEF, 0x80000000, 0xFFFFFFFF])
    @pytest.mark.parametrize("length", [*range(18), 63, 64, 65, 1031])
    def test_is_that_of_zlib(self, crc: Crc, length: int, seed: int) -> None:
        for start in (0, 1, 3, 8):
            expected = zlib.crc32(DATA[start : start + length].tobytes(), seed)
            assert crc(seed, DATA.ctypes.data + start, length) == expected

    def test_is_that_of_its_definition(self, crc: Crc) -> None:
        assert crc(5, DATA.ctypes.data, 333) == plain_crc32(5, DATA[:333].tobytes())

    def test_continues_from_the_checksum_of_what_went_before(self, crc: Crc) -> None:
        whole = crc(0, DATA.ctypes.data, len(DATA))
        for cut in (0, 1, 7, 2048, len(DATA)):
            first = crc(0, DATA.ctypes.data, cut)
            assert crc(first, DATA.ctypes.data + cut, len(DATA) - cut) == whole

    def test_is_the_check_value_of_the_algorithm(self, crc: Crc) -> None:
        digits = np.frombuffer(b"123456789", np.uint8)
        assert crc(0, digits.ctypes.data, 9) == 0xCBF43926


CRC_PROGRAM = """
import sys, zlib
{before}
import numpy as np
from kvlane import rawmem
data = np.arange(999, dtype=np.uint8)
assert rawmem.crc32(3, data.ctypes.data + 1, 997) == zlib.crc32(data[1:998].tobytes(), 3)
print(rawmem._isal_crc32_address() is not None, rawmem.crc32 is rawmem.crc32_sliced)
"""


@pytest.mark.parametrize(
    ("before", "env", "printed"),
    [
        ("", {"NUMBA_DISABLE_JIT": "0"}, "True False"),
        ("sys.modules['isal'] = None", {"NUMBA_DISABLE_JIT": "0"}, "False True"),
        ("", {"NUMBA_DISABLE_JIT": "1"}, "True False"),
        ("sys.modules['isal'] = None", {"NUMBA_DISABLE_JIT": "1"}, "False False"),
    ],
    ids=["isal", "no isal", "plain", "plain, no isal"],
)
def test_crc32_is_right_with_and_without_isal(
    tmp_path: Path, before: str, env: dict[str, str], printed: str
) -> None:
    done = run_python(["-c", CRC_PROGRAM.format(before=before)], cwd=tmp_path, env=env)
    assert done.stdout.strip() == printed, done.stderr


@pytest.mark.parametrize(
    ("destination", "source", "length"),
    [(500, 0, 100), (0, 500, 100), (10, 0, 100), (0, 10, 100), (3, 4, 1), (7, 7, 50), (0, 9, 0)],
)
def test_copy_is_a_move_also_where_the_ranges_overlap(
    destination: int, source: int, length: int
) -> None:
    memory = DATA[:1000].copy()
    expected = bytearray(memory.tobytes())
    expected[destination : destination + length] = bytes(expected[source : source + length])
    start = memory.ctypes.data
    copy(start + destination, start + source, length)
    assert memory.tobytes() == bytes(expected)


def test_copy_of_nothing_touches_no_memory() -> None:
    copy(0, 0, 0)
    memory = DATA[:16].copy()
    copy(memory.ctypes.data, memory.ctypes.data + 8, -8)
    assert memory.tobytes() == DATA[:16].tobytes()


@pytest.mark.parametrize("length", [0, 1, 1000])
def test_bytes_at_an_address_are_read(length: int) -> None:
    assert sum_bytes(DATA.ctypes.data + 1, length) == int(DATA[1 : 1 + length].sum())


def test_bytes_at_an_address_are_the_memory_itself() -> None:
    memory = np.zeros(10, np.uint8)
    fill_bytes(memory.ctypes.data + 3, 4, 9)
    assert memory.tolist() == [0, 0, 0, 9, 9, 9, 9, 0, 0, 0]


def test_record_is_a_reference_into_the_table() -> None:
    table: Any = np.zeros(5, ROW)
    total = chain_rows(table.ctypes.data + ROW.itemsize, 3)
    assert table["id"].tolist() == [0, -1, 0, 1, 0]
    assert table["small"].tolist() == [0, 250, 251, 252, 0]
    assert table["wide"].tolist() == [0, 4000000000, 4000000001, 4000000002, 0]
    assert table["tail"].tolist() == [0, -10, 0, 10, 0]
    assert total == 0 - 10 + 0 + 10


def test_accessors_of_different_records_are_linked_by_different_names() -> None:
    def named_for(dtype: np.dtype[Any]) -> str:
        def accessor(address: int, count: int) -> int:
            return address + count

        return str(_named_for(accessor, dtype).__qualname__)

    first, second = np.dtype([("x", "i8")]), np.dtype([("x", "i8"), ("y", "i8")])
    names = [named_for(dtype) for dtype in (first, second, first)]
    assert names[0] == names[2] != names[1]
    assert all(name.startswith("accessor_") for name in names)


@given(length=st.integers(0, 600), at=st.integers(0, 70), to=st.integers(0, 70))
def test_past_the_cache_the_same_bytes_arrive_and_nothing_beside_them(
    length: int, at: int, to: int
) -> None:
    target = np.full(800, 0xA5, np.uint8)
    copy_past_cache(target.ctypes.data + to, DATA.ctypes.data + at, length)
    assert (target[to : to + length] == DATA[at : at + length]).all()
    assert (target[:to] == 0xA5).all()
    assert (target[to + length :] == 0xA5).all()
