"""Tiers of memory as a command line names them: ``dram=64GiB``, ``nvme=1TiB:/mnt/nvme0``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvlane.config import parse_bytes
from kvlane.errors import ConfigError

HBM, DRAM, NVME, REMOTE = "hbm", "dram", "nvme", "remote"
TIER_NAMES = (HBM, DRAM, NVME, REMOTE)
"""Hottest first: the accelerator's memory, the agent's, its files, what lies behind a network."""

HOTTER_POLICY = "lru"
"""Of tiers above the coldest: they decide what is near, and the coldest what is lost. A policy that
weighs worth is best where it sees all: two of them above each other break chains apart."""


@dataclass(frozen=True, slots=True)
class TierSize:
    """A tier, how much it holds, and where it lies, if that was said."""

    name: str
    capacity_bytes: int
    place: str = ""


def parse_tiers(texts: Sequence[str]) -> list[TierSize]:
    """Tiers from ``NAME=SIZE[:PLACE]``, hottest first; ``ConfigError`` says what is wrong."""
    tiers = [_parse_tier(text) for text in texts]
    names = [tier.name for tier in tiers]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--tier {name} appears twice; give each tier one size")
    in_order = sorted(names, key=TIER_NAMES.index)
    if names != in_order:
        raise ConfigError(
            f"--tier: {', '.join(names)} is not from hot to cold; write {', '.join(in_order)}"
        )
    return tiers


def _parse_tier(text: str) -> TierSize:
    name, equals, rest = text.partition("=")
    if not equals:
        raise ConfigError(f"--tier {text!r}: write NAME=SIZE, such as dram=64GiB")
    if name not in TIER_NAMES:
        raise ConfigError(f"--tier {text!r}: unknown tier {name!r}; one of {', '.join(TIER_NAMES)}")
    size, _, place = rest.partition(":")
    try:
        capacity_bytes = parse_bytes(int(size) if size.isdecimal() else size)
    except ConfigError as error:
        raise ConfigError(f"--tier {text!r}: {error}") from error
    return TierSize(name, capacity_bytes, place)


def parse_policies(texts: Sequence[str], tiers: Sequence[str]) -> Mapping[str, str]:
    """The policy of each tier, from ``NAME`` for the coldest and ``TIER=NAME`` for any, the last
    winning. The others have ``HOTTER_POLICY``.

    Whether there is such a policy is for whoever has policies to say.
    """
    policies = dict.fromkeys(tiers, HOTTER_POLICY)
    for text in texts:
        if "=" not in text:
            policies[tiers[-1]] = text
    for text in texts:
        tier, equals, policy = text.partition("=")
        if equals and tier not in policies:
            raise ConfigError(
                f"--policy {text!r}: there is no tier {tier!r} here; one of {', '.join(tiers)}"
            )
        if equals:
            policies[tier] = policy
    return policies
