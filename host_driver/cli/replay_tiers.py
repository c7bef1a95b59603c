"""``replay --tier``: a private emulated agent with the memory and files that were asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from urllib.parse import urlencode

from host_driver.emulated import SCHEME
from kvlane.errors import ConfigError
from kvlane.tier_sizes import DRAM, NVME, TierSize, parse_policies, parse_tiers

_PAGE_BYTES = 4096
_SEGMENTS = 8
_MAX_SEGMENT_BYTES = 256 << 20
_SEGMENT_HEADROOM_BYTES = 128 << 10
"""Of a segment, beside a block: headers, and what is rounded."""


def check_has_tiers(target: str, capacity_gib: float | None) -> None:
    """``ConfigError`` when tiers cannot be had beside these options."""
    if target != SCHEME:
        raise ConfigError(f"--tier is for --target {SCHEME} alone; {target} has its own tiers")
    if capacity_gib is not None:
        raise ConfigError(f"--capacity-gib says the same as --tier {DRAM}; leave one of them out")


def tiered_target(
    tiers: Sequence[str], policies: Sequence[str], block_bytes: int, undo: ExitStack
) -> str:
    """An ``emulated:`` target with such tiers; files that were given no place are gone with
    ``undo``. ``ConfigError`` for what no agent has."""
    sizes = {tier.name: tier for tier in parse_tiers(tiers)}
    for name in sizes:
        if name not in (DRAM, NVME):
            raise ConfigError(
                f"--tier {name}: only a replay in virtual time has this tier; add --virtual, or "
                f"leave it out"
            )
    if DRAM not in sizes:
        raise ConfigError(
            f"--tier {NVME} needs memory above it; add --tier {DRAM}=SIZE, hotter tiers first"
        )
    policy_of = parse_policies(policies, list(sizes))
    memory = sizes[DRAM]
    if memory.place:
        raise ConfigError(f"--tier {DRAM}: memory has no place {memory.place!r}; write {DRAM}=SIZE")
    if memory.capacity_bytes < block_bytes:
        raise ConfigError(
            f"--tier {DRAM}: {memory.capacity_bytes} bytes hold not one block of {block_bytes}; "
            f"enlarge it, or lower --block-bytes"
        )
    options = {
        "capacity": str(memory.capacity_bytes),
        "block_bytes": str(block_bytes),
        "policy": policy_of[DRAM],
    }
    if NVME in sizes:
        options |= _nvme_options(sizes[NVME], policy_of[NVME], block_bytes, undo)
    return f"{SCHEME}?{urlencode(options)}"


def _nvme_options(tier: TierSize, policy: str, block_bytes: int, undo: ExitStack) -> dict[str, str]:
    least = -(-(block_bytes + _SEGMENT_HEADROOM_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
    if tier.capacity_bytes < _SEGMENTS * least:
        raise ConfigError(
            f"--tier {NVME}: {tier.capacity_bytes} bytes are too few for {_SEGMENTS} files of "
            f"blocks of {block_bytes}; give it {_SEGMENTS * least} or more"
        )
    share = tier.capacity_bytes // _SEGMENTS // _PAGE_BYTES * _PAGE_BYTES
    place = tier.place or undo.enter_context(tempfile.TemporaryDirectory(prefix="kvlane-replay-"))
    return {
        "nvme": place,
        "nvme_capacity": str(tier.capacity_bytes),
        "nvme_segment": str(min(_MAX_SEGMENT_BYTES, share)),
        "nvme_policy": policy,
    }
