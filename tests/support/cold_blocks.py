"""Capsule servers over a colder tier that has blocks, and nobody who brings them but the test."""

from __future__ import annotations

import zlib

import numpy as np

from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.cache.store import BlockStore
from kvlane.capsule import KeyStatus, Opcode
from tests.support.capsule_host import BLOCK_BYTES, CapsuleHost, ServerRig, key_array

COLD_BLOCKS = 8


def cold_rig(*cold_keys: int, hot_keys: tuple[int, ...] = ()) -> tuple[ServerRig, CapsuleHost]:
    """A rig whose colder tier has some keys, and whose memory has some that its host stored."""
    cold = BlockStore(
        capacity_blocks=COLD_BLOCKS,
        block_bytes=BLOCK_BYTES,
        policy=make_policy("lru", COLD_BLOCKS),
        seed=2,
    )
    keys = key_array(*cold_keys)
    slots, _ = cold.reserve(keys, np.full(len(keys), BLOCK_BYTES))
    cold.publish(slots, np.zeros(len(keys), np.uint32), 0)
    rig = ServerRig(cold=cold, low_water_blocks=1)
    (host,) = rig.hosts
    if hot_keys:
        positions = range(len(hot_keys))
        host.fill(list(positions))
        rig.ask(host, Opcode.STORE, key_array(*hot_keys), host.descriptors(*positions))
    return rig, host


def content(key: int) -> np.ndarray:
    """Bytes of the block of a key that lay in the colder tier."""
    return np.full(BLOCK_BYTES, key, np.uint8)


def promote(rig: ServerRig, *keys: int) -> None:
    """Bring blocks into memory, as whoever keeps the colder tier does."""
    slots, statuses = rig.store.reserve(key_array(*keys), np.full(len(keys), BLOCK_BYTES))
    assert statuses.tolist() == [KeyStatus.OK] * len(keys)
    for key, slot in zip(keys, slots.tolist(), strict=True):
        start = rig.store.slot_offset(slot)
        rig.pool.buffer[start : start + BLOCK_BYTES] = content(key)
    sums = [zlib.crc32(content(key).tobytes()) for key in keys]
    rig.store.publish(slots, np.array(sums, np.uint32), 0)
