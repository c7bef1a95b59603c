"""Eviction policies by the name that a configuration gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dpu_agent.cache.policy.arc import ArcPolicy
from dpu_agent.cache.policy.base import EvictionPolicy
from dpu_agent.cache.policy.clock import ClockPolicy
from dpu_agent.cache.policy.clock_age import ClockAgePolicy
from dpu_agent.cache.policy.lfu import LfuPolicy
from dpu_agent.cache.policy.lfu_decay import LfuDecayPolicy
from dpu_agent.cache.policy.lru import LruPolicy
from dpu_agent.cache.policy.lru_k import LruKPolicy
from dpu_agent.cache.policy.mq import MqPolicy
from dpu_agent.cache.policy.reuse import ReusePolicy
from dpu_agent.cache.policy.s3_fifo import S3FifoPolicy
from dpu_agent.cache.policy.sieve import SievePolicy
from dpu_agent.cache.policy.two_q import TwoQPolicy
from dpu_agent.cache.policy.w_tinylfu import WTinyLfuPolicy
from kvlane.errors import ConfigError

POLICIES: Mapping[str, Callable[[int], EvictionPolicy]] = {
    "arc": ArcPolicy,
    "clock": ClockPolicy,
    "clock_age": ClockAgePolicy,
    "lfu": LfuPolicy,
    "lfu_decay": LfuDecayPolicy,
    "lru": LruPolicy,
    "lru_k": LruKPolicy,
    "mq": MqPolicy,
    "reuse": ReusePolicy,
    "s3_fifo": S3FifoPolicy,
    "sieve": SievePolicy,
    "two_q": TwoQPolicy,
    "w_tinylfu": WTinyLfuPolicy,
}
"""Name -> factory that takes the number of slots."""


LEARNING: Mapping[str, Callable[[int, bytes], EvictionPolicy]] = {
    "reuse": lambda capacity_blocks, learnt: ReusePolicy(capacity_blocks, learnt=learnt),
}
"""Those that go on with what an earlier one has learnt."""


def make_policy(name: str, capacity_blocks: int, *, learnt: bytes = b"") -> EvictionPolicy:
    """A new policy for that many slots; ``ConfigError`` lists the names there are.

    ``learnt`` is what an earlier one has given (``ReusePolicy.learnt``), where it learns.
    """
    factory = POLICIES.get(name)
    if factory is None:
        raise ConfigError(
            f"unknown eviction policy {name!r}; choose one of: {', '.join(sorted(POLICIES))}"
        )
    if learnt:
        if name not in LEARNING:
            raise ConfigError(
                f"the policy {name} learns nothing; use one of: {', '.join(LEARNING)}"
            )
        return LEARNING[name](capacity_blocks, learnt)
    return factory(capacity_blocks)
