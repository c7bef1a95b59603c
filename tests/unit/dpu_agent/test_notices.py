"""The chains that MATCH commands ask for reach whoever looks after the colder tier."""

from __future__ import annotations

import numpy as np
import pytest

from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.cache.store import BlockStore
from dpu_agent.data._notice_kernels import NOTICED_CHAINS, NOTICED_KEYS
from dpu_agent.data.state import Notices
from kvlane.capsule import Opcode
from kvlane.limits import MAX_KEYS_PER_CAPSULE
from tests.support.capsule_host import BLOCK_BYTES, CapsuleHost, ServerRig, key_array


def rig_with(notices: Notices, *cold_keys: int) -> tuple[ServerRig, CapsuleHost]:
    cold = BlockStore(
        capacity_blocks=8, block_bytes=BLOCK_BYTES, policy=make_policy("lru", 8), seed=2
    )
    if cold_keys:
        keys = key_array(*cold_keys)
        slots, _ = cold.reserve(keys, np.full(len(keys), BLOCK_BYTES))
        cold.publish(slots, np.zeros(len(keys), np.uint32), 0)
    rig = ServerRig(cold=cold, notices=notices)
    return rig, rig.hosts[0]


@pytest.mark.parametrize(
    ("notices", "noticed"), [(Notices.NONE, 0), (Notices.COLD, 1), (Notices.ALL, 3)]
)
def test_who_wants_which_is_told_of_those(notices: Notices, noticed: int) -> None:
    rig, host = rig_with(notices, 1, 2)
    for keys in ((1, 2, 3), (5, 6), (7,)):
        rig.ask(host, Opcode.MATCH, key_array(*keys))
    rig.run()
    assert [chain.tolist() for chain in rig.colder.noticed] == [
        key_array(*keys).tolist() for keys in ((1, 2, 3), (5, 6), (7,))[:noticed]
    ]


def test_only_a_match_is_noticed() -> None:
    rig, host = rig_with(Notices.ALL, 1)
    rig.ask(host, Opcode.EXIST, key_array(1))
    rig.run()
    assert rig.colder.noticed == []


def test_long_chains_go_round_the_ring_unharmed() -> None:
    rig, host = rig_with(Notices.ALL)
    asked = []
    for turn in range(3 * NOTICED_KEYS // MAX_KEYS_PER_CAPSULE):
        rng = np.random.default_rng(turn)
        keys = rng.integers(0, 256, (MAX_KEYS_PER_CAPSULE - turn, 32), np.uint8)
        rig.ask(host, Opcode.MATCH, keys)
        asked.append(keys.tolist())
    rig.run()
    assert [chain.tolist() for chain in rig.colder.noticed] == asked


def test_what_finds_no_room_is_left_out_and_all_is_answered() -> None:
    """Nobody fetches what was noticed while the commands of one burst are served."""
    rig, host = rig_with(Notices.ALL)
    server = rig.server._server[0]
    tell, rig.server._tell_chains = rig.server._tell_chains, lambda: None  # type: ignore[method-assign]
    for number in range(NOTICED_CHAINS + 10):
        assert rig.ask(host, Opcode.MATCH, key_array(number % 250)).result == 0
    assert server.noticed_tail - server.noticed_head == NOTICED_CHAINS
    tell()
    assert len(rig.colder.noticed) == NOTICED_CHAINS
