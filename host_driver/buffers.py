"""What a caller may pass as keys and blocks, turned into arrays of addresses and lengths."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from host_driver._address_kernels import address_of
from host_driver._placement_kernels import list_rows
from kvlane.capsule import KeyArray
from kvlane.errors import ConfigError
from kvlane.keys import pack_keys
from kvlane.limits import KEY_BYTES, MAX_BLOCK_BYTES


class HasNumpy(Protocol):
    """A tensor that shares its memory with the array that ``numpy()`` returns (torch, CPU)."""

    def numpy(self) -> NDArray[Any]:
        """The same memory as an array."""


Keys = Sequence[bytes] | NDArray[np.uint8]
"""Block keys: a list of 32-byte keys, or an array of shape (n, 32)."""

_KEYS_FORM = (np.dtype(np.uint8), (KEY_BYTES,))

Blocks = Sequence[Any] | NDArray[Any]
"""Blocks: a list of buffers (bytes, arrays, CPU tensors), or one array with a row a block."""


@dataclass(frozen=True, slots=True)
class BlockList:
    """Where blocks lie in this process."""

    addrs: NDArray[np.int64]
    lengths: NDArray[np.int64]
    """Bytes."""
    owners: Any
    """Whatever keeps the memory alive and unmoved."""

    def __len__(self) -> int:
        return len(self.addrs)

    def part(self, span: slice) -> BlockList:
        """Some of the blocks."""
        return BlockList(self.addrs[span], self.lengths[span], self.owners)

    def octets(self, index: int) -> NDArray[np.uint8]:
        """The bytes of one block, as an array that does not keep them alive."""
        kind = ctypes.c_uint8 * int(self.lengths[index])
        return np.ctypeslib.as_array(kind.from_address(int(self.addrs[index])))


def key_array(keys: Keys) -> KeyArray:
    """Keys as an (n, 32) array of their own, so that the caller may reuse his.

    ``ConfigError`` for what is no list of keys.
    """
    if not isinstance(keys, np.ndarray):
        _require_list(keys, "keys")
        return pack_keys(keys)
    if keys.dtype != np.uint8 or keys.ndim != 2 or keys.shape[1] != KEY_BYTES:
        raise ConfigError(
            f"keys must be uint8 of shape (n, {KEY_BYTES}), not {keys.dtype} of {keys.shape}"
        )
    copied: KeyArray = keys.copy(order="C")
    return copied


class KeyChains(NamedTuple):
    """Chains of keys, one behind the other."""

    keys: KeyArray
    ends: NDArray[np.int64]
    """The key behind the last of each chain."""


def key_chains(chains: Sequence[Keys]) -> KeyChains:
    """Chains of keys as arrays of their own, so that the caller may reuse his.

    For chains that are arrays nothing is done in Python for each. ``ConfigError`` for what are
    no keys.
    """
    _require_list(chains, "chains")
    if not len(chains):
        return KeyChains(np.zeros((0, KEY_BYTES), np.uint8), np.zeros(0, np.int64))
    arrays: Sequence[Any] = chains
    are_arrays = set(map(type, chains)) == {np.ndarray}
    if not are_arrays or {(a.dtype, a.shape[1:]) for a in arrays} != {_KEYS_FORM}:
        arrays = [key_array(chain) for chain in chains]
    keys: KeyArray = np.concatenate(arrays)
    return KeyChains(keys, np.cumsum(np.fromiter(map(len, arrays), np.int64, len(arrays))))


def block_list(blocks: Blocks, *, name: str, writable: bool) -> BlockList:
    """Addresses of ``blocks``; ``ConfigError`` names the first that cannot be used and why.

    ``name`` is what the caller calls the argument; ``writable`` asks for buffers to write to.
    """
    if isinstance(blocks, np.ndarray):
        return _rows_of(blocks, name, writable)
    _require_list(blocks, name)
    views = [view_of(item, f"{name}[{i}]", writable) for i, item in enumerate(blocks)]
    lengths = np.array([view.nbytes for view in views], np.int64)
    wrong = np.flatnonzero((lengths <= 0) | (lengths > MAX_BLOCK_BYTES))
    if len(wrong):
        _require_length(int(lengths[wrong[0]]), f"{name}[{wrong[0]}]")
    return BlockList(np.array([_address(view) for view in views], np.int64), lengths, views)


def view_of(item: Any, name: str, writable: bool) -> NDArray[Any]:
    """An array over the memory of ``item`` itself, never over a copy that is written to.

    ``ConfigError`` calls it by ``name``.
    """
    if isinstance(item, np.ndarray):
        view: NDArray[Any] = item
    elif hasattr(item, "numpy"):
        view = _numpy_of(item, name)
    else:
        try:
            octets = memoryview(item)
            view = np.frombuffer(octets, np.uint8) if octets.nbytes else np.empty(0, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            if writable or not hasattr(item, "__array__"):
                raise ConfigError(
                    f"{name} is a {type(item).__name__}, not a contiguous buffer, array or "
                    f"CPU tensor"
                ) from error
            view = np.asarray(item)
    _require_usable(view, name, writable)
    return view


def _require_list(items: Any, name: str) -> None:
    """``ConfigError`` for one buffer in place of a list, and for what has no items at all."""
    if isinstance(items, str | bytes | bytearray | memoryview) or not isinstance(items, Iterable):
        raise ConfigError(f"{name} must be a list or an array, not one {type(items).__name__}")


def _address(array: NDArray[Any]) -> int:
    if array.dtype == np.uint8 and array.ndim == 2 and array.flags.c_contiguous:
        return address_of(array)  # rows of bytes, which blocks mostly are: much faster
    address: int = array.__array_interface__["data"][0]
    return address


def _rows_of(array: NDArray[Any], name: str, writable: bool) -> BlockList:
    """One array as blocks: its first axis counts them, each row is contiguous."""
    if array.ndim < 2:
        raise ConfigError(f"{name} as one array needs a row a block, not shape {array.shape}")
    count = len(array)
    addrs, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
    if count:
        first = array[0]
        _require_usable(first, f"{name}[0]", writable)
        _require_length(first.nbytes, f"{name}[0]")
        list_rows(_address(array), array.strides[0], first.nbytes, addrs, lengths)
    return BlockList(addrs, lengths, array)


def _numpy_of(tensor: HasNumpy, name: str) -> NDArray[Any]:
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError) as error:
        # torch says so of device tensors, and of dtypes that numpy lacks (bfloat16, float8).
        raise ConfigError(
            f"{name} cannot be seen as an array ({error}); pass a CPU tensor viewed as bytes, "
            f"such as tensor.view(torch.uint8)"
        ) from error


def _require_length(nbytes: int, name: str) -> None:
    if not 1 <= nbytes <= MAX_BLOCK_BYTES:
        raise ConfigError(f"{name} has {nbytes} bytes; a block has 1 to {MAX_BLOCK_BYTES}")


def _require_usable(array: NDArray[Any], name: str, writable: bool) -> None:
    if array.dtype.hasobject:
        raise ConfigError(f"{name} holds Python objects (dtype {array.dtype}), not bytes")
    if not array.flags.c_contiguous:
        raise ConfigError(f"{name} is not contiguous (shape {array.shape}, {array.strides} steps)")
    if writable and not array.flags.writeable:
        raise ConfigError(f"{name} is read-only; blocks cannot be retrieved into it")
