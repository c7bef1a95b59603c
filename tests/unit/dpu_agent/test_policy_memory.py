"""What a policy has learnt comes back at the next start, or is put aside; no start fails for it."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from dpu_agent.cache.policy.registry import LEARNING, make_policy
from dpu_agent.cache.policy.reuse import ReusePolicy
from dpu_agent.cache.store import BlockStore
from dpu_agent.durability.policy_memory import PolicyMemory
from kvlane.capsule import KeyStatus
from kvlane.errors import ConfigError
from tests.support.capsule_host import key_array

SLOTS = 16
BLOCK_BYTES = 4096
S = 1_000_000_000


def store_with(memory: PolicyMemory, name: str = "reuse") -> BlockStore:
    policy = memory.new_policy("memory", name, SLOTS)
    store = BlockStore(capacity_blocks=SLOTS, block_bytes=BLOCK_BYTES, policy=policy, seed=1)
    memory.keep("memory", name, store)
    return store


def use(store: BlockStore, requests: int = 60) -> None:
    """Conversations of which each goes on a few times."""
    for number in range(requests):
        chain = key_array(*(10 * (number % 5) + n for n in range(1, 2 + number // 5)))
        now = number * 10 * S
        store.match(chain, now)
        slots = store.pin(chain, now)
        store.unpin(slots[slots >= 0], store.generations(slots[slots >= 0]))
        new = chain[slots < 0]
        slots, statuses = store.reserve(new, np.full(len(new), BLOCK_BYTES))
        taken = slots[statuses == KeyStatus.OK]
        store.publish(taken, np.zeros(len(taken), np.uint32), now)


def learnt_of(store: BlockStore) -> bytes:
    assert isinstance(store.policy, ReusePolicy)
    return store.policy.learnt()


def test_what_is_learnt_is_there_at_the_next_start(tmp_path: Path) -> None:
    memory = PolicyMemory(str(tmp_path / "state"))
    store = store_with(memory)
    untaught = learnt_of(store)
    use(store)
    memory.save()
    following = store_with(PolicyMemory(str(tmp_path / "state")))
    assert len(learnt_of(following)) == len(learnt_of(store)) > len(untaught)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["memory-reuse.learnt"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign", "empty"])
def test_a_damaged_file_is_put_aside_and_said(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = PolicyMemory(str(tmp_path))
    store = store_with(memory)
    use(store)
    memory.save()
    path = tmp_path / "memory-reuse.learnt"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    kinds = {"truncated": content[:50], "flipped": content, "foreign": b"x" * 100, "empty": b""}
    path.write_bytes(kinds[damage])
    following = store_with(PolicyMemory(str(tmp_path)))
    use(following)
    if damage != "empty":  # as if nothing had been learnt
        assert "put aside" in caplog.text
        assert path.with_name("memory-reuse.learnt.damaged").read_bytes() == kinds[damage]


def test_a_directory_that_cannot_be_written_to_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"state\.directory .*file"):
        PolicyMemory(str(tmp_path / "file"))


def test_a_disk_that_is_full_later_keeps_what_was_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = PolicyMemory(str(tmp_path))
    store = store_with(memory)
    use(store)
    memory.save()
    before = (tmp_path / "memory-reuse.learnt").read_bytes()
    (tmp_path / "memory-reuse.learnt.new").mkdir()  # so that it cannot be opened
    use(store)
    with caplog.at_level(logging.WARNING):
        memory.save()
        memory.save()
    assert caplog.text.count("cannot be written") == 1
    assert (tmp_path / "memory-reuse.learnt").read_bytes() == before


def test_without_a_directory_nothing_is_kept() -> None:
    memory = PolicyMemory("")
    use(store_with(memory))
    assert not memory.has_anything_to_save
    memory.save()


def test_policies_that_learn_nothing_have_no_file(tmp_path: Path) -> None:
    memory = PolicyMemory(str(tmp_path))
    use(store_with(memory, "lru"))
    memory.save()
    assert list(tmp_path.iterdir()) == []
    assert set(LEARNING) == {"reuse"}
    with pytest.raises(ConfigError, match="learns nothing"):
        make_policy("lru", 4, learnt=b"x")
