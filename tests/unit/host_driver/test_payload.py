"""Payload: equal to its plain twin, different for every key, and any wrong byte is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from host_driver.replay import payload
from kvlane.errors import ConfigError

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mix_twin(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def payload_twin(key: bytes, nbytes: int) -> bytes:
    state = 0
    for at in range(0, 32, 8):
        state = mix_twin(((state + GAMMA) & MASK) ^ int.from_bytes(key[at : at + 8], "little"))
    out = b""
    for _ in range(nbytes // 8):
        state = (state + GAMMA) & MASK
        out += mix_twin(state).to_bytes(8, "little")
    return out


def key_rows(*keys: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), 32)


def filled(keys: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    blocks = np.zeros((len(keys), nbytes), np.uint8)
    payload.fill(blocks, keys)
    return blocks


@given(
    st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=4),
    st.integers(1, 20).map(lambda words: 8 * words),
)
def test_fill_is_its_plain_twin_and_verifies(keys: list[bytes], nbytes: int) -> None:
    blocks = filled(key_rows(*keys), nbytes)
    assert [row.tobytes() for row in blocks] == [payload_twin(key, nbytes) for key in keys]
    assert payload.verify(blocks, key_rows(*keys)) == 0


def test_the_generator_is_splitmix64() -> None:
    # The first three outputs of the published generator for the seed 1234567.
    state, outputs = 1234567, []
    for _ in range(3):
        state = (state + GAMMA) & MASK
        outputs.append(mix_twin(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.binary(min_size=32, max_size=32), st.integers(0, 255))
def test_every_bit_of_the_key_changes_the_payload(key: bytes, bit: int) -> None:
    other = bytearray(key)
    other[bit // 8] ^= 1 << (bit % 8)
    one, two = filled(key_rows(key, bytes(other)), 64)
    assert np.count_nonzero(one != two) > 32


@given(st.integers(0, 3 * 96 - 1), st.integers(1, 255))
def test_any_wrong_byte_is_found_and_blocks_are_counted(at: int, change: int) -> None:
    keys = key_rows(b"a" * 32, b"b" * 32, b"c" * 32)
    blocks = filled(keys, 96)
    blocks.reshape(-1)[at] ^= change
    assert payload.verify(blocks, keys) == 1
    blocks[(at // 96 + 1) % 3] = 0
    assert payload.verify(blocks, keys) == 2


def test_a_block_under_another_key_is_wrong() -> None:
    keys = key_rows(b"a" * 32, b"b" * 32)
    assert payload.verify(filled(keys, 64)[::-1].copy(), keys) == 2


def test_no_blocks_are_no_errors() -> None:
    assert payload.verify(np.zeros((0, 64), np.uint8), key_rows()) == 0


@pytest.mark.parametrize(
    ("blocks", "keys"),
    [
        (np.zeros((2, 64), np.uint8), np.zeros((3, 32), np.uint8)),
        (np.zeros((2, 64), np.uint8), np.zeros((2, 31), np.uint8)),
        (np.zeros(64, np.uint8), np.zeros((1, 32), np.uint8)),
        (np.zeros((2, 60), np.uint8), np.zeros((2, 32), np.uint8)),
        (np.zeros((2, 128), np.uint8)[:, :64], np.zeros((2, 32), np.uint8)),
    ],
)
def test_arrays_that_do_not_go_together_are_refused(
    blocks: NDArray[np.uint8], keys: NDArray[np.uint8]
) -> None:
    with pytest.raises(ConfigError, match="payload"):
        payload.fill(blocks, keys)


@pytest.mark.parametrize("block_bytes", [0, 56, 100, (1 << 30) + 8, -64])
def test_block_sizes_without_payload_are_refused(block_bytes: int) -> None:
    with pytest.raises(ConfigError, match="multiple of 8"):
        payload.check_block_bytes(block_bytes)
