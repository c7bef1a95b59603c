"""Keys are pinned, depend on everything that shapes a block, and on nothing of the process."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from kvlane.errors import ConfigError
from kvlane.keys import (
    MAX_SALT_BYTES,
    adopted_key,
    block_chain,
    block_key,
    pack_keys,
    root_key,
)
from kvlane.namespace import Namespace
from tests.support.repository import run_python

NAMESPACE = Namespace(
    name="llama",
    model="meta-llama/Llama-3.1-8B",
    weights_version="r1",
    kv_dtype="bfloat16",
    layout="LBHD",
    block_tokens=16,
    block_bytes=2 << 20,
    num_layers=32,
    num_kv_heads=8,
    head_dim=128,
    tensor_rank=1,
    tensor_size=2,
)
SALT = b"tenant-a"
TOKENS = [*range(1, 33), 7]
ENGINE_HASH = bytes(range(32))

# Pinned: a change of any of them makes every block that was ever stored unfindable, and
# needs a new HASH_VERSION.
ROOT_HEX = "455aa5f2b5e20855310249c12d25e773caab1ac4f731fe121ccb68f40b8e24ff"
SALTED_ROOT_HEX = "89fb3cb452c9fbf2074b36c56fdf75eefde2dde826cb0a4c04e4a6ebaed69153"
CHAIN_HEX = [
    "504260e7d6a9e3a600f377485eb5a554b6b19af7806858f090666faeddd1d236",
    "ff3525e573cb14c1f2ad9f46058eb3642000e1591087049399b6117e57c5ff17",
]
EXTRA_HEX = "45f14ede42fb07c13a53658c5bd5b87ae0ea7136caf298be6b316e478a117141"
ADOPTED_HEX = "526daa4558f028a3556b530ceb5495a858cb8fd1be27911be9fc159ddda31ea5"

UNSALTED = root_key(NAMESPACE)


def plain_block_key(parent: bytes, tokens: Sequence[int], extra: bytes = b"") -> bytes:
    """A block's key, packed by hand."""
    message = parent + struct.pack(f"<I{len(tokens)}I", len(tokens), *tokens)
    message += struct.pack("<I", len(extra)) + extra
    return blake2b(message, digest_size=32, person=b"kvlane-block-v1").digest()


def test_roots_are_pinned() -> None:
    assert UNSALTED.hex() == ROOT_HEX
    assert root_key(NAMESPACE, SALT).hex() == SALTED_ROOT_HEX


def test_root_is_a_keyed_hash_of_the_descriptor() -> None:
    plain = blake2b(NAMESPACE.canonical(), digest_size=32, person=b"kvlane-root-v1", key=SALT)
    assert plain.hexdigest() == SALTED_ROOT_HEX


def test_block_chain_is_pinned_and_leaves_the_partial_tail() -> None:
    assert [key.hex() for key in block_chain(UNSALTED, TOKENS, 16)] == CHAIN_HEX


def test_block_chain_is_the_chain_of_plain_block_keys() -> None:
    first = plain_block_key(UNSALTED, range(1, 17))
    assert [first, plain_block_key(first, range(17, 33))] == block_chain(UNSALTED, TOKENS, 16)


def test_key_with_extra_is_pinned() -> None:
    arguments = (UNSALTED, [1, 2, 0xFFFFFFFF], b"image:abc")
    assert block_key(*arguments).hex() == EXTRA_HEX
    assert plain_block_key(*arguments).hex() == EXTRA_HEX


def test_adopted_key_is_pinned() -> None:
    assert adopted_key(UNSALTED, ENGINE_HASH).hex() == ADOPTED_HEX
    plain = blake2b(UNSALTED + ENGINE_HASH, digest_size=32, person=b"kvlane-adopt-v1")
    assert plain.hexdigest() == ADOPTED_HEX


def test_keys_do_not_depend_on_the_process(tmp_path: Path) -> None:
    program = (
        "from kvlane.keys import *; from kvlane.namespace import Namespace\n"
        "root = root_key(Namespace(model='m', lora='l'), b's')\n"
        "keys = [root, *block_chain(root, range(64), 16), adopted_key(root, b'h')]\n"
        "print([key.hex() for key in keys])"
    )
    seen = [
        run_python(["-c", program], cwd=tmp_path, env={"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert seen[0].stdout == seen[1].stdout
    assert seen[0].stdout.count("'") == 12, seen[0].stderr


def test_everything_that_shapes_a_block_changes_its_key() -> None:
    other = Namespace(model="another")
    parent = block_key(UNSALTED, [1, 2])
    keys = [
        parent,
        block_key(root_key(NAMESPACE, b"tenant-b"), [1, 2]),
        block_key(root_key(NAMESPACE, b"tenant-b\0"), [1, 2]),
        block_key(root_key(other), [1, 2]),
        block_key(UNSALTED, [2, 1]),
        block_key(UNSALTED, [1, 3]),
        block_key(UNSALTED, [1]),
        block_key(UNSALTED, []),
        block_key(UNSALTED, [1, 2, 0]),
        block_key(UNSALTED, [1, 2], b"\0"),
        block_key(UNSALTED, [1, 2], b"x"),
        block_key(parent, [1, 2]),
        adopted_key(UNSALTED, parent),
        adopted_key(UNSALTED, b""),
        UNSALTED,
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("tokens", "extra", "other_tokens", "other_extra"),
    [
        ([5], b"", [], struct.pack("<I", 5)),
        ([5, 9], b"", [5], struct.pack("<I", 9)),
        ([0], b"", [], bytes(4)),
        ([], bytes(8), [0, 0], b""),
        ([1], struct.pack("<I", 0), [1, 4], b""),
    ],
)
def test_tokens_and_extra_are_not_mistaken_for_each_other(
    tokens: list[int], extra: bytes, other_tokens: list[int], other_extra: bytes
) -> None:
    assert block_key(UNSALTED, tokens, extra) != block_key(UNSALTED, other_tokens, other_extra)


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<i4", ">i4", "<u4", ">u4", "<i8", "<u8"])
def test_key_depends_on_token_ids_and_not_on_their_type(dtype: str) -> None:
    tokens = np.arange(1, 17, dtype=dtype)
    assert block_key(UNSALTED, tokens).hex() == CHAIN_HEX[0]
    assert block_chain(UNSALTED, tokens, 16) == [bytes.fromhex(CHAIN_HEX[0])]


def test_key_of_a_strided_view_is_that_of_its_tokens() -> None:
    tokens = np.arange(0, 34, dtype="<u4").reshape(17, 2)[:, 1][:8]
    assert block_key(UNSALTED, tokens) == block_key(UNSALTED, [1, 3, 5, 7, 9, 11, 13, 15])


# Each would be taken for another prompt if it were converted like C does.
@pytest.mark.parametrize(
    "tokens",
    [
        [-1],
        [1 << 32],
        [1 << 70],
        np.array([-1]),
        np.array([5, 1 << 32]),
        [1.5],
        np.array([1.0]),
        ["1"],
        [True],
        [[1, 2], [3, 4]],
        np.zeros((2, 2), "<u4"),
    ],
)
@pytest.mark.parametrize(
    "make",
    [block_key, lambda root, tokens: block_chain(root, tokens, 1)],
    ids=["block_key", "block_chain"],
)
def test_token_ids_that_a_key_cannot_hold_are_refused(
    make: Callable[[bytes, Sequence[int]], object], tokens: Sequence[int]
) -> None:
    with pytest.raises(ConfigError, match="token ids"):
        make(UNSALTED, tokens)


@pytest.mark.parametrize("block_tokens", [0, -16])
def test_block_of_no_tokens_is_refused(block_tokens: int) -> None:
    with pytest.raises(ConfigError, match=str(block_tokens)):
        block_chain(UNSALTED, TOKENS, block_tokens)


@pytest.mark.parametrize(("count", "blocks"), [(0, 0), (15, 0), (16, 1), (31, 1), (32, 2)])
def test_only_full_blocks_have_keys(count: int, blocks: int) -> None:
    assert len(block_chain(UNSALTED, range(count), 16)) == blocks


def test_longer_prompt_keeps_the_keys_of_its_prefix() -> None:
    assert block_chain(UNSALTED, range(64), 16)[:2] == block_chain(UNSALTED, range(32), 16)


def test_longest_salt_is_taken_and_a_longer_one_refused() -> None:
    assert len(root_key(NAMESPACE, bytes(MAX_SALT_BYTES))) == 32
    with pytest.raises(ConfigError, match="65"):
        root_key(NAMESPACE, bytes(MAX_SALT_BYTES + 1))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_parent_that_is_no_key_is_refused(length: int) -> None:
    # A key has one length; otherwise its end could be taken for the start of what follows.
    with pytest.raises(ConfigError, match=f"{length} bytes"):
        block_key(bytes(length), [1])
    with pytest.raises(ConfigError, match=f"{length} bytes"):
        adopted_key(bytes(length), ENGINE_HASH)


def test_keys_are_packed_in_order() -> None:
    keys = [bytes([n]) * 32 for n in (3, 1, 2)]
    packed = pack_keys(iter(keys))
    assert packed.shape == (3, 32)
    assert [row.tobytes() for row in packed] == keys
    assert pack_keys([]).shape == (0, 32)


def test_key_of_another_length_is_not_packed() -> None:
    with pytest.raises(ConfigError, match="key 1 has 31 bytes"):
        pack_keys([bytes(32), bytes(31)])


@pytest.mark.parametrize("key", ["a" * 32, 7, None])
def test_what_is_no_bytes_is_no_key(key: object) -> None:
    with pytest.raises(ConfigError, match="a block key is 32 bytes"):
        pack_keys([key])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="a block key is 32 bytes"):
        block_key(key, [1])  # type: ignore[arg-type]
