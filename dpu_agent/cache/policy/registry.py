"""Eviction policies by the name that a configuration gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dpu_agent.cache.policy.base import EvictionPolicy
from dpu_agent.cache.policy.lru import LruPolicy
from kvlane.errors import ConfigError

POLICIES: Mapping[str, Callable[[int], EvictionPolicy]] = {"lru": LruPolicy}
"""Name -> factory that takes the number of slots."""


def make_policy(name: str, capacity_blocks: int) -> EvictionPolicy:
    """A new policy for that many slots; ``ConfigError`` lists the names there are."""
    factory = POLICIES.get(name)
    if factory is None:
        raise ConfigError(
            f"unknown eviction policy {name!r}; choose one of: {', '.join(sorted(POLICIES))}"
        )
    return factory(capacity_blocks)
