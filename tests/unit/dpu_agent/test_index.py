"""The index against a dict: nothing lost or confused at any load, by removal, or by attack."""

from __future__ import annotations

import numpy as np
import pytest

from dpu_agent.cache import _index_kernels as kernels
from dpu_agent.cache._index_kernels import IndexArrays, KeyWords
from dpu_agent.cache._slot_kernels import SLOT
from dpu_agent.cache.index import MAX_CAPACITY_BLOCKS, key_words, new_index
from kvlane.errors import ConfigError
from tests.support.blocks import random_keys


def plain_hash(secrets: list[int], key: bytes) -> int:
    """The hash as its proof has it: a sum over 16-bit words, then Horner's rule."""
    words = [int.from_bytes(key[i : i + 2], "little") for i in range(0, 32, 2)]
    point = sum(s * w for s, w in zip(secrets, words, strict=False)) % kernels.PRIME
    terms = (c * pow(point, power, kernels.PRIME) for power, c in enumerate(reversed(secrets[16:])))
    return sum(terms) % kernels.PRIME


def keys_at_home(index: IndexArrays, home: int, count: int) -> KeyWords:
    """Keys whose search begins in one bucket."""
    words = key_words(random_keys(2 * count * len(index.entries)))
    hashes = (kernels.hash_key(index.secrets, words, row) for row in range(len(words)))
    homes = [kernels.home_of(hashed, len(index.entries)) for hashed in hashes]
    chosen = words[np.flatnonzero(np.array(homes) == home)[:count]]
    assert len(chosen) == count
    return chosen


def test_hash_is_the_function_of_the_proof() -> None:
    secrets = new_index(4, seed=5).secrets
    keys = random_keys(20)
    keys[0], keys[1] = 0, 255
    words = key_words(keys)
    computed = [kernels.hash_key(secrets, words, row) for row in range(len(words))]
    assert computed == [plain_hash(secrets.tolist(), key.tobytes()) for key in keys]
    assert kernels.hash_all(secrets, words).tolist() == computed
    assert kernels.hash_all(secrets, words[:0]).tolist() == []


@pytest.mark.parametrize("capacity", [1, 2, 3, 64, 150])
def test_like_a_dict_up_to_full(capacity: int) -> None:
    index = new_index(capacity, seed=capacity)
    words = key_words(random_keys(2 * capacity))
    twin: dict[int, int] = {}
    free = list(range(capacity))
    rng = np.random.default_rng(capacity)
    for _ in range(10 * capacity):
        row = int(rng.integers(len(words)))
        if row in twin:
            kernels.remove(index, twin[row])
            free.append(twin.pop(row))
        elif free:
            twin[row] = free.pop()
            kernels.insert(index, words, row, twin[row])
        if rng.integers(8) == 0:
            expected = [twin.get(row, -1) for row in range(len(words))]
            assert kernels.find_all(index, words).tolist() == expected
    for row in [row for row in range(len(words)) if row not in twin][: len(free)]:
        twin[row] = free.pop()
        kernels.insert(index, words, row, twin[row])
    assert free == []
    expected = [twin.get(row, -1) for row in range(len(words))]
    assert kernels.find_all(index, words).tolist() == expected
    for slot in twin.values():
        kernels.remove(index, slot)
    assert not index.entries.any()


@pytest.mark.parametrize("home", [0, 32, 64])
def test_keys_that_share_a_bucket(home: int) -> None:
    """All probes start in one bucket, in the last case at the table's end."""
    capacity = 48
    index = new_index(capacity, seed=9)
    assert len(index.entries) == 65
    words = keys_at_home(index, home, capacity + 1)
    for slot in range(capacity):
        kernels.insert(index, words, slot, slot)
    expected = [*range(capacity), -1]
    assert kernels.find_all(index, words).tolist() == expected
    for slot in np.random.default_rng(3).permutation(capacity).tolist():
        kernels.remove(index, slot)
        expected[slot] = -1
        assert kernels.find_all(index, words).tolist() == expected
    kernels.insert(index, words, capacity, 0)
    assert kernels.find_all(index, words).tolist() == [-1] * capacity + [0]


def test_all_32_bytes_decide() -> None:
    """With secrets of zero every key has one hash and tag, so only the bytes tell them apart."""
    index = new_index(64, seed=0)
    index = index._replace(secrets=np.zeros_like(index.secrets))
    keys = np.repeat(random_keys(1), 33, axis=0)
    keys[np.arange(32), np.arange(32)] ^= 1
    words = key_words(keys)
    for row in range(0, 33, 2):
        kernels.insert(index, words, row, row)
    expected = [row if row % 2 == 0 else -1 for row in range(33)]
    assert kernels.find_all(index, words).tolist() == expected


@pytest.mark.parametrize("column", [0, 7, 28])
@pytest.mark.parametrize("step", [1, kernels.PRIME, 1 << 16], ids=["1", "prime", "2^16"])
def test_keys_in_a_pattern_scatter(column: int, step: int) -> None:
    """Who does not know the seed cannot crowd a bucket with regular keys."""
    index = new_index(600, seed=11)
    keys = np.zeros((600, 32), np.uint8)
    for row in range(600):
        value = (row * step) % (1 << 32)
        keys[row, column : column + 4] = np.frombuffer(value.to_bytes(4, "little"), np.uint8)
    words = key_words(keys)
    homes = [
        kernels.home_of(kernels.hash_key(index.secrets, words, row), len(index.entries))
        for row in range(600)
    ]
    occupied, crowd = np.unique(homes, return_counts=True)
    # 600 random throws into 801 buckets hit 422 of them, and hardly ever one more than 7 times.
    assert 370 < len(occupied) < 480
    assert crowd.max() <= 8


def test_seed_decides_where_keys_lie() -> None:
    words = key_words(random_keys(50))

    def hashes(seed: int) -> list[int]:
        secrets = new_index(100, seed).secrets
        return [kernels.hash_key(secrets, words, row) for row in range(len(words))]

    assert hashes(1) == hashes(1)
    assert set(hashes(1)).isdisjoint(hashes(2))


def test_kernels_see_one_type_of_keys() -> None:
    """Read-only, misaligned and strided keys would each compile every kernel again."""
    keys = random_keys(4)
    buffer = np.zeros(1 + keys.size, np.uint8)
    buffer[1:] = keys.reshape(-1)
    readonly = np.frombuffer(keys.tobytes(), np.uint8).reshape(4, 32)
    strided = np.repeat(keys, 2, axis=0)[::2]
    for form in (keys, buffer[1:].reshape(4, 32), readonly, strided):
        words = key_words(form)
        assert words.tobytes() == keys.tobytes()
        assert words.shape == (4, 4)
        assert words.flags.c_contiguous
        assert words.flags.writeable
        assert words.flags.aligned
        assert not np.shares_memory(words, form)


@pytest.mark.parametrize("shape", [(32,), (2, 16), (1, 64)])
def test_keys_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match="shape"):
        key_words(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("capacity", [0, -1, MAX_CAPACITY_BLOCKS + 1])
def test_capacity_outside_the_limits(capacity: int) -> None:
    with pytest.raises(ConfigError, match=f"capacity_blocks must be 1 to .*not {capacity}"):
        new_index(capacity, seed=0)


@pytest.mark.parametrize("seed", [-1, 1 << 256])
def test_seed_outside_the_limits(seed: int) -> None:
    with pytest.raises(ConfigError, match="256 bits"):
        new_index(1, seed)


def test_metadata_of_a_block_fits_its_budget() -> None:
    capacity = 10_000
    index = new_index(capacity, seed=0)
    lru_links = 8
    assert (index.entries.nbytes + index.keys.nbytes) / capacity + SLOT.itemsize + lru_links <= 64
