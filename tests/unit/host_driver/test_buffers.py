"""Held: what a caller passes is used where it lies, and what cannot be is named by its index."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from host_driver.buffers import BlockList, block_list, key_array, key_chains
from kvlane.errors import ConfigError


class Tensor:
    """What matters of a tensor: ``numpy()`` shares its memory."""

    def __init__(self, error: Exception | None = None) -> None:
        self.memory = np.arange(6, dtype=np.float32).reshape(2, 3)
        self.error = error

    def numpy(self) -> np.ndarray:
        if self.error:
            raise self.error
        return self.memory


class ArrayLike:
    """Makes an array of itself, as a copy."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.arange(4, dtype=np.uint8)


def bytes_of(blocks: BlockList, index: int) -> bytes:
    return ctypes.string_at(int(blocks.addrs[index]), int(blocks.lengths[index]))


@pytest.mark.parametrize(
    ("make", "content"),
    [
        (lambda: b"abc", b"abc"),
        (lambda: bytearray(b"abc"), b"abc"),
        (lambda: memoryview(b"xabcx")[1:4], b"abc"),
        (lambda: array.array("H", [1, 2]), array.array("H", [1, 2]).tobytes()),
        (lambda: np.arange(3, dtype="<i4"), np.arange(3, dtype="<i4").tobytes()),
        (lambda: np.ones((2, 2, 2), np.float16), np.ones(8, np.float16).tobytes()),
        (Tensor, np.arange(6, dtype=np.float32).tobytes()),
        (ArrayLike, bytes(range(4))),
    ],
    ids=["bytes", "bytearray", "memoryview", "array", "numpy", "shaped", "tensor", "array-like"],
)
def test_every_kind_of_buffer_can_be_stored(make: Callable[[], Any], content: bytes) -> None:
    blocks = block_list([b"first", make()], name="blocks", writable=False)
    assert len(blocks) == 2
    assert bytes_of(blocks, 1) == content
    assert blocks.octets(1).tobytes() == content


@pytest.mark.parametrize(
    "buffer",
    [bytearray(8), np.zeros(3), array.array("d", [1.0]), Tensor()],
    ids=["bytearray", "numpy", "array", "tensor"],
)
def test_a_writable_buffer_is_written_in_place(buffer: Any) -> None:
    blocks = block_list([buffer], name="into", writable=True)
    blocks.octets(0)[:] = 0xFF
    own: Any = buffer.memory if isinstance(buffer, Tensor) else buffer
    assert memoryview(own).tobytes() == b"\xff" * int(blocks.lengths[0])


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (b"read-only", r"into\[1\] is read-only"),
        (np.zeros((4, 4))[:, 1], r"into\[1\] is not contiguous"),
        (memoryview(bytearray(8))[::2], r"into\[1\] is a memoryview, not a contiguous"),
        (ArrayLike(), r"into\[1\] is a ArrayLike"),
        (np.zeros(2, object), r"into\[1\] holds Python objects"),
        (7, r"into\[1\] is a int"),
        ("text", r"into\[1\] is a str"),
        (b"", r"into\[1\]"),
        (np.zeros(0, np.uint8), r"into\[1\] has 0 bytes"),
        (Tensor(TypeError("no bfloat16")), r"into\[1\].*no bfloat16.*view\(torch.uint8\)"),
    ],
)
def test_an_unusable_buffer_is_named(item: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        block_list([bytearray(4), item], name="into", writable=True)


def test_one_array_is_a_row_a_block() -> None:
    whole = np.arange(4 * 3 * 2, dtype=np.int32).reshape(4, 3, 2)
    blocks = block_list(whole, name="blocks", writable=False)
    assert blocks.lengths.tolist() == [24] * 4
    assert bytes_of(blocks, 2) == whole[2].tobytes()


def test_rows_may_lie_apart_and_in_reverse() -> None:
    whole = np.arange(64, dtype=np.uint8).reshape(8, 8)
    blocks = block_list(whole[::-2, :6], name="blocks", writable=True)
    assert [bytes_of(blocks, i) for i in range(4)] == [
        whole[row, :6].tobytes() for row in (7, 5, 3, 1)
    ]


@pytest.mark.parametrize(
    ("whole", "text"),
    [
        (np.zeros(8, np.uint8), "a row a block"),
        (np.zeros((8, 8), np.uint8)[:, ::2], "not contiguous"),
        (np.zeros((8, 8), np.uint8).T, "not contiguous"),
        (np.broadcast_to(np.zeros(8, np.uint8), (3, 8)), "read-only"),
    ],
)
def test_an_array_that_is_no_table_of_blocks_is_refused(whole: np.ndarray, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        block_list(whole, name="into", writable=True)


def test_no_blocks_are_no_error() -> None:
    assert len(block_list([], name="blocks", writable=False)) == 0
    assert len(block_list(np.zeros((0, 8)), name="blocks", writable=False)) == 0


def test_keys_are_taken_as_a_list_or_an_array() -> None:
    keys = [bytes([i]) * 32 for i in range(3)]
    packed = key_array(keys)
    assert packed.shape == (3, 32)
    assert np.array_equal(key_array(packed), packed)


def test_the_callers_key_array_may_be_reused_at_once() -> None:
    keys = np.zeros((2, 32), np.uint8)
    taken = key_array(keys)
    keys[:] = 1
    assert not taken.any()


@pytest.mark.parametrize(
    "keys",
    [
        np.zeros((2, 31), np.uint8),
        np.zeros(32, np.uint8),
        np.zeros((1, 32)),
        [b"short"],
        ["a" * 32],
        [1],
    ],
    ids=["width", "flat", "dtype", "short", "text", "number"],
)
def test_what_is_no_key_is_refused(keys: Any) -> None:
    with pytest.raises(ConfigError, match="32"):
        key_array(keys)


@pytest.mark.parametrize("one", [bytes(32), "a" * 32, None, 7])
def test_one_thing_in_place_of_a_list_is_refused(one: Any) -> None:
    with pytest.raises(ConfigError, match="keys must be a list"):
        key_array(one)
    with pytest.raises(ConfigError, match="blocks must be a list"):
        block_list(one, name="blocks", writable=False)


KEYS = np.arange(6 * 32, dtype=np.uint8).reshape(6, 32)


@pytest.mark.parametrize(
    "chains",
    [
        [KEYS[:2], KEYS[2:2], KEYS[2:]],
        [[bytes(key) for key in KEYS[:2]], KEYS[2:2], [bytes(key) for key in KEYS[2:]]],
        (np.concatenate((KEYS[:1], KEYS))[1:][:2], KEYS[:0], KEYS[:1:-1][::-1]),
    ],
    ids=["arrays", "mixed", "strided"],
)
def test_chains_follow_each_other(chains: Any) -> None:
    packed = key_chains(chains)
    assert packed.ends.tolist() == [2, 2, 6]
    assert (packed.keys == KEYS).all()
    assert packed.keys.flags.c_contiguous


def test_one_array_may_have_a_chain_a_row() -> None:
    packed = key_chains(KEYS.reshape(3, 2, 32))
    assert packed.ends.tolist() == [2, 4, 6]
    assert (packed.keys == KEYS).all()


def test_no_chains_are_no_error() -> None:
    packed = key_chains([])
    assert packed.keys.shape == (0, 32)
    assert packed.ends.tolist() == []


@pytest.mark.parametrize("one", [KEYS, KEYS[:1]], ids=["many", "one"])
def test_the_callers_chains_may_be_reused_at_once(one: Any) -> None:
    mine = one.copy()
    packed = key_chains([mine])
    mine[:] = 99
    assert (packed.keys == one).all()


@pytest.mark.parametrize(
    "wrong",
    [
        KEYS.astype(bool),
        KEYS.astype(np.int8),
        KEYS[:, :31],
        KEYS.reshape(-1),
        KEYS.reshape(3, 2, 32),
        [b"short"],
        b"x" * 32,
    ],
    ids=["bool", "int8", "narrow", "flat", "deep", "short key", "one key"],
)
def test_a_chain_that_is_none_is_refused_among_others(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        key_chains([KEYS, wrong])


def test_something_in_place_of_chains_is_refused() -> None:
    with pytest.raises(ConfigError, match="chains must be a list"):
        key_chains(b"x" * 64)  # type: ignore[arg-type]
