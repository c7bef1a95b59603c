"""The index: an open-addressing hash table from a 32-byte key to a slot number.

Linear probing over 4-byte entries that hold ``tag << slot_bits | slot + 1``, 0 when empty.
The tag is a piece of the hash that the position does not show; it spares most looks at a
key, but only the comparison of all 32 bytes decides. Removal shifts later entries back, so
there are no tombstones and the table never wears out.

A host may send any bytes as a key, so the hash is drawn by secrets from a family with a
proof. The 16 words of a key are summed with secret factors modulo the prime 2^31 - 1
(words are below the prime: two keys collide with probability 2^-31), and the sum goes
through a secret polynomial of degree 4. A 5-independent function keeps the expected number
of probes constant (Pagh, Pagh, Ruzic, "Linear probing with constant independence", 2009).
No product exceeds 62 bits, so that the same arithmetic runs interpreted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlane.atomics import prefetch
from kvlane.jit import kernel
from kvlane.limits import KEY_BYTES
from kvlane.rawmem import array_accessor

PRIME = (1 << 31) - 1
KEY_WORDS = 4
"""A key as 64-bit words, in which it is stored and compared."""
_SUM_TERMS = 16
_POLYNOMIAL_TERMS = 5
_ENTRY_BYTES = 4
SECRETS = _SUM_TERMS + _POLYNOMIAL_TERMS
_pieces_at = array_accessor(np.dtype(np.uint16))

KeyWords = NDArray[np.int64]
"""Shape (n, 4), C-contiguous: 32-byte keys."""


class IndexArrays(NamedTuple):
    """The arrays of one index."""

    entries: NDArray[np.uint32]
    """Shape (buckets,); more buckets than slots, so that every probe sequence ends."""
    keys: KeyWords
    """Shape (capacity, 4): the key in each slot, valid while an entry names the slot."""
    secrets: NDArray[np.int64]
    """Shape (SECRETS,), each below PRIME."""
    slot_bits: int
    """Bits of an entry that hold ``slot + 1``."""


@kernel
def _folded(value: int) -> int:
    """Congruent to ``value`` (0 to 2^62) modulo the prime, and at most the prime itself.

    2^31 is 1 modulo a Mersenne prime, so what lies above bit 31 is added; a division takes
    twice as long.
    """
    once = (value & PRIME) + (value >> 31)
    return (once & PRIME) + (once >> 31)


@kernel
def _sum_of(secrets: NDArray[np.int64], pieces: Any, first: int) -> int:
    """The 16 words of a key from position ``first`` on, each times its factor."""
    total = np.int64(0)
    for term in range(_SUM_TERMS):
        total += secrets[term] * np.int64(pieces[first + term])
    return int(total)


@kernel
def _through_polynomial(secrets: NDArray[np.int64], total: int) -> int:
    """The hash of a key whose sum is known."""
    point = _folded(total)
    result: int = secrets[_SUM_TERMS]
    for term in range(_SUM_TERMS + 1, SECRETS):
        result = _folded(result * point + secrets[term])
    return result - PRIME if result >= PRIME else result


@kernel
def hash_key(secrets: NDArray[np.int64], keys: KeyWords, row: int) -> int:
    """The hash of ``keys[row]``, 0 to 2^31 - 2."""
    pieces = _pieces_at(int(keys.ctypes.data) + KEY_BYTES * row, _SUM_TERMS)
    return int(_through_polynomial(secrets, _sum_of(secrets, pieces, 0)))


@kernel
def identity_of(secrets: NDArray[np.int64], keys: KeyWords, row: int) -> int:
    """62 bits that stand for ``keys[row]`` where the key is not kept: its hash above its sum.

    Two keys share them with probability 2^-31, whatever hosts send.
    """
    pieces = _pieces_at(int(keys.ctypes.data) + KEY_BYTES * row, _SUM_TERMS)
    total = _sum_of(secrets, pieces, 0)
    return int(_through_polynomial(secrets, total) << 31 | _folded(total))


@kernel
def hash_all(secrets: NDArray[np.int64], keys: KeyWords) -> NDArray[np.int64]:
    """The hash of each key. Two loops, which the compiler makes work on several keys at once."""
    pieces = _pieces_at(int(keys.ctypes.data), _SUM_TERMS * len(keys))
    hashes = np.empty(len(keys), np.int64)
    for row in range(len(keys)):
        hashes[row] = _sum_of(secrets, pieces, _SUM_TERMS * row)
    for row in range(len(keys)):
        hashes[row] = _through_polynomial(secrets, hashes[row])
    return hashes


@kernel
def home_of(hashed: int, buckets: int) -> int:
    """The bucket where the search for a hash begins."""
    return (hashed * buckets) >> 31


@kernel
def _tag_of(hashed: int, slot_bits: int) -> int:
    """The low bits of a hash; its high bits chose the bucket."""
    return hashed & ((1 << (32 - slot_bits)) - 1)


@kernel
def find(index: IndexArrays, keys: KeyWords, row: int) -> int:
    """The slot of ``keys[row]``, or -1."""
    return find_hashed(index, keys, row, hash_key(index.secrets, keys, row))


@kernel
def find_hashed(index: IndexArrays, keys: KeyWords, row: int, hashed: int) -> int:
    """``find`` for a key whose hash is known."""
    buckets = len(index.entries)
    slot_mask = (1 << index.slot_bits) - 1
    tag = _tag_of(hashed, index.slot_bits)
    bucket = home_of(hashed, buckets)
    while True:
        entry = np.int64(index.entries[bucket])
        if entry == 0:
            return -1
        slot: int = (entry & slot_mask) - 1
        if entry >> index.slot_bits == tag and _is_key(index, slot, keys, row):
            return slot
        bucket = bucket + 1 if bucket + 1 < buckets else 0


@kernel
def _is_key(index: IndexArrays, slot: int, keys: KeyWords, row: int) -> bool:
    """Whether a slot's key is ``keys[row]``; one branch for all of it."""
    difference = np.int64(0)
    for word in range(KEY_WORDS):
        difference |= index.keys[slot, word] ^ keys[row, word]
    return bool(difference == 0)


@kernel
def find_all(index: IndexArrays, keys: KeyWords) -> NDArray[np.int64]:
    """The slot of each key, -1 where absent.

    A large index lies in no cache, and each look-up waits for memory twice: for the entry, then
    for the key. Asked for ahead of time, the waits of many keys run side by side.
    """
    hashes = hash_all(index.secrets, keys)
    entries = int(index.entries.ctypes.data)
    for row in range(len(keys)):
        prefetch(entries + _ENTRY_BYTES * home_of(hashes[row], len(index.entries)))
    for row in range(len(keys)):
        _prefetch_key(index, hashes[row])
    for row in range(len(keys)):
        hashes[row] = find_hashed(index, keys, row, hashes[row])
    return hashes


@kernel
def _prefetch_key(index: IndexArrays, hashed: int) -> None:
    """Ask for the key that the first entry on a hash's way leads to, if it may be the one."""
    entry = np.int64(index.entries[home_of(hashed, len(index.entries))])
    if entry != 0 and entry >> index.slot_bits == _tag_of(hashed, index.slot_bits):
        slot = (entry & ((1 << index.slot_bits) - 1)) - 1
        prefetch(int(index.keys.ctypes.data) + KEY_BYTES * slot)


@kernel
def insert(index: IndexArrays, keys: KeyWords, row: int, slot: int) -> None:
    """Let ``keys[row]``, which is absent, lead to ``slot``, to which no key leads."""
    buckets = len(index.entries)
    hashed = hash_key(index.secrets, keys, row)
    bucket = home_of(hashed, buckets)
    while index.entries[bucket] != 0:
        bucket = bucket + 1 if bucket + 1 < buckets else 0
    for word in range(KEY_WORDS):
        index.keys[slot, word] = keys[row, word]
    index.entries[bucket] = _tag_of(hashed, index.slot_bits) << index.slot_bits | (slot + 1)


@kernel
def remove(index: IndexArrays, slot: int) -> None:
    """Forget the key that leads to ``slot``; there is one."""
    buckets = len(index.entries)
    slot_mask = (1 << index.slot_bits) - 1
    hole = home_of(hash_key(index.secrets, index.keys, slot), buckets)
    while np.int64(index.entries[hole]) & slot_mask != slot + 1:
        hole = hole + 1 if hole + 1 < buckets else 0
    bucket = hole
    while True:
        bucket = bucket + 1 if bucket + 1 < buckets else 0
        entry = np.int64(index.entries[bucket])
        if entry == 0:
            break
        resident = (entry & slot_mask) - 1
        home = home_of(hash_key(index.secrets, index.keys, resident), buckets)
        # An entry may fill the hole unless its home lies after the hole on its way.
        if (bucket - home) % buckets >= (bucket - hole) % buckets:
            index.entries[hole] = entry
            hole = bucket
    index.entries[hole] = 0
