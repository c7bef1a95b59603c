"""Block keys: prefix-chained hashes of tokens, salted by tenant and bound to a namespace.

A key is a pure function of content. It depends on no process seed and on no Python
hash, so that two processes on two machines name a block alike (golden vectors in tests).

    root        = H("root",  salt; canonical descriptor)
    key(block)  = H("block", parent key | u32 token count | u32 tokens | u32 length | extra)
    adopted key = H("adopt", root | engine's own block hash)

H is BLAKE2b with a 32-byte digest and the first argument as its personalisation; the
tenant's salt keys the root, so without it no key of that tenant can be made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlane.capsule import KeyArray
from kvlane.errors import ConfigError
from kvlane.limits import KEY_BYTES
from kvlane.namespace import Namespace

_ROOT = b"kvlane-root-v1"
_BLOCK = b"kvlane-block-v1"
_ADOPT = b"kvlane-adopt-v1"
MAX_SALT_BYTES = 64
"""What BLAKE2b takes as a key."""


def root_key(namespace: Namespace, salt: bytes = b"") -> bytes:
    """The parent of every first block of a namespace and tenant."""
    if len(salt) > MAX_SALT_BYTES:
        raise ConfigError(f"a tenant's salt has at most {MAX_SALT_BYTES} bytes, not {len(salt)}")
    hasher = blake2b(namespace.canonical(), digest_size=KEY_BYTES, person=_ROOT, key=salt)
    return hasher.digest()


def _token_array(tokens: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.uint32]:
    """Token ids as they are hashed; an id that would be changed by that is refused.

    A conversion that wraps or truncates would give two prompts one key.
    """
    array = np.asarray(tokens)
    if array.dtype == np.dtype("<u4") and array.ndim == 1:
        return array
    if array.size == 0:
        return np.empty(0, "<u4")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ConfigError("token ids must be a flat sequence of integers")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= 1 << 32:
        raise ConfigError(f"token ids must be 0 to 2^32 - 1, not {low if low < 0 else high}")
    return array.astype("<u4")


def _require_key(name: str, key: bytes) -> None:
    if not isinstance(key, bytes | bytearray | memoryview):
        raise ConfigError(f"{name} is {key!r:.40}; a block key is {KEY_BYTES} bytes")
    # What is hashed after a key is unambiguous only because every key has one length.
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{name} has {len(key)} bytes; a block key has {KEY_BYTES}")


def block_key(
    parent: bytes, tokens: Sequence[int] | NDArray[np.integer[Any]], extra: bytes = b""
) -> bytes:
    """The key of the block that holds ``tokens`` after the chain that ends in ``parent``.

    ``extra`` is whatever else shapes the block: image hashes, a cache salt. ``ConfigError``
    for a parent that is no key and for token ids outside unsigned 32 bits.
    """
    _require_key("the parent", parent)
    ids = _token_array(tokens)
    hasher = blake2b(parent, digest_size=KEY_BYTES, person=_BLOCK)
    hasher.update(len(ids).to_bytes(4, "little"))
    hasher.update(ids.tobytes())
    hasher.update(len(extra).to_bytes(4, "little"))
    hasher.update(extra)
    return hasher.digest()


def block_chain(
    root: bytes, tokens: Sequence[int] | NDArray[np.integer[Any]], block_tokens: int
) -> list[bytes]:
    """Keys of all full blocks of a prompt; a partial tail has no key."""
    if block_tokens <= 0:
        raise ConfigError(f"block_tokens must be positive, not {block_tokens}")
    ids = _token_array(tokens)
    keys: list[bytes] = []
    parent = root
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        parent = block_key(parent, ids[start : start + block_tokens])
        keys.append(parent)
    return keys


def adopted_key(root: bytes, engine_hash: bytes) -> bytes:
    """A key from an engine's own chained block hash."""
    _require_key("the root", root)
    return blake2b(root + engine_hash, digest_size=KEY_BYTES, person=_ADOPT).digest()


def pack_keys(keys: Iterable[bytes]) -> KeyArray:
    """Keys as an (n, 32) array for a capsule; ``ConfigError`` names one of another length."""
    listed = list(keys)
    # Both sets are made without a step of Python a key; only what is odd is looked at singly.
    if set(map(type, listed)) != {bytes} or set(map(len, listed)) != {KEY_BYTES}:
        for index, key in enumerate(listed):
            _require_key(f"key {index}", key)
    return np.frombuffer(b"".join(listed), np.uint8).reshape(len(listed), KEY_BYTES)
