"""Held: the agent hears of a region once, before it is used, and it is taken back there first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from host_driver.buffers import block_list
from host_driver.memory import CALLER_REGIONS
from host_driver.registrations import Registrations
from kvlane.errors import CapacityError, ConfigError, KvlaneError, SessionNotFoundError
from kvlane.verbs.enums import AccessFlags
from kvlane.verbs.protocols import MemoryRegion
from tests.support.loopback_verbs import LoopbackDevice, LoopbackFabric


class Agent:
    """What the agent was told, and how the next telling ends."""

    def __init__(self) -> None:
        self.log: list[tuple[str, list[int]]] = []
        self.error: KvlaneError | None = None
        self.ended: KvlaneError | None = None

    def why_ended(self) -> KvlaneError | None:
        return self.ended

    def register(self, regions: Sequence[MemoryRegion]) -> None:
        self._note("register", [region.rkey for region in regions])

    def deregister(self, rkeys: Sequence[int]) -> None:
        self._note("deregister", list(rkeys))

    def _note(self, what: str, rkeys: list[int]) -> None:
        if self.error is not None:
            raise self.error
        self.log.append((what, rkeys))


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def device() -> LoopbackDevice:
    return LoopbackFabric().devices[0]


@pytest.fixture
def memory(device: LoopbackDevice, agent: Agent) -> Registrations:
    return Registrations(device, agent.register, agent.deregister, agent.why_ended)


def test_registering_tells_nobody_and_announcing_tells_once(
    memory: Registrations, agent: Agent
) -> None:
    rows = memory.alloc(4096).reshape(4, 1024)
    located = memory.locate(block_list(rows, name="blocks", writable=False))
    assert agent.log == []
    memory.announce(located.regions)
    memory.announce(located.regions)
    assert agent.log == [("register", [located.regions[0].rkey])]
    assert located.rkeys.tolist() == [located.regions[0].rkey] * 4


def test_a_failed_announcement_is_made_again(memory: Registrations, agent: Agent) -> None:
    rows = memory.alloc(64).reshape(1, 64)
    regions = memory.locate(block_list(rows, name="blocks", writable=False)).regions
    agent.error = CapacityError("too many regions")
    with pytest.raises(CapacityError):
        memory.announce(regions)
    agent.error = None
    memory.announce(regions)
    assert [what for what, _ in agent.log] == ["register"]


def test_the_agent_lets_go_before_the_key_is_revoked(
    memory: Registrations, agent: Agent, device: LoopbackDevice
) -> None:
    keys = device.regions
    buffer = memory.alloc(64)
    regions = memory.locate(block_list([buffer], name="blocks", writable=False)).regions
    memory.announce(regions)
    region = memory.forget(buffer)
    assert region.rkey in keys
    memory.release(region)
    assert agent.log[-1] == ("deregister", [region.rkey])
    assert region.rkey not in keys
    located = memory.locate(block_list([buffer], name="blocks", writable=False))
    assert located.rkeys.tolist() == [-1]


def test_what_the_agent_never_heard_of_is_not_taken_back_from_it(
    memory: Registrations, agent: Agent
) -> None:
    memory.release(memory.forget(memory.alloc(64)))
    assert agent.log == []


def test_the_key_is_revoked_even_when_the_agent_is_gone(
    memory: Registrations, agent: Agent, device: LoopbackDevice
) -> None:
    buffer = memory.alloc(64)
    memory.announce(memory.locate(block_list([buffer], name="b", writable=False)).regions)
    agent.error = SessionNotFoundError("sessions/5")
    memory.release(memory.forget(buffer))
    assert device.regions == {}


def test_nothing_is_told_after_the_session_has_ended(
    memory: Registrations, agent: Agent, device: LoopbackDevice
) -> None:
    known, unknown = memory.alloc(64), memory.alloc(64)
    memory.announce(memory.locate(block_list([known], name="b", writable=False)).regions)
    told = list(agent.log)
    agent.ended = SessionNotFoundError("gone")
    with pytest.raises(SessionNotFoundError):
        memory.announce(memory.locate(block_list([unknown], name="b", writable=False)).regions)
    memory.release(memory.forget(known))
    assert agent.log == told
    assert len(device.regions) == 1


def test_a_place_is_free_again_only_when_the_agent_has_let_go(memory: Registrations) -> None:
    buffers = [memory.alloc(64) for _ in range(CALLER_REGIONS)]
    leaving = memory.forget(buffers[0])
    with pytest.raises(CapacityError, match="few large"):
        memory.alloc(64)
    memory.release(leaving)
    memory.alloc(64)


def test_memory_freed_before_its_first_use_is_not_announced(
    memory: Registrations, agent: Agent
) -> None:
    buffer = memory.alloc(64)
    regions = memory.locate(block_list([buffer], name="blocks", writable=False)).regions
    memory.release(memory.forget(buffer))
    with pytest.raises(ConfigError, match="freed before"):
        memory.announce(regions)
    assert agent.log == []


def test_blocks_registered_for_one_call_are_found_by_no_other(
    memory: Registrations, device: LoopbackDevice
) -> None:
    blocks = block_list([b"read-only", bytearray(50)], name="blocks", writable=False)
    (region,) = memory.register_blocks(blocks, np.array([0]), AccessFlags.REMOTE_READ)
    assert region.length == 9
    assert device.regions[region.rkey].access == AccessFlags.REMOTE_READ
    assert memory.locate(blocks).rkeys.tolist() == [-1, -1]


def test_regions_of_one_call_are_taken_back_together(
    memory: Registrations, agent: Agent, device: LoopbackDevice
) -> None:
    blocks = block_list([b"one", b"two", b"three"], name="blocks", writable=False)
    regions = memory.register_blocks(blocks, np.arange(3), AccessFlags.REMOTE_READ)
    memory.announce(regions)
    memory.withdraw(regions)
    rkeys = [region.rkey for region in regions]
    assert agent.log == [("register", rkeys), ("deregister", rkeys)]
    assert device.regions == {}


@pytest.mark.parametrize(
    ("buffer", "text"),
    [(bytearray(), "empty"), (b"abc", "read-only"), (np.zeros((4, 4)).T[1:], "not contiguous")],
)
def test_what_cannot_be_registered_is_refused(
    memory: Registrations, device: LoopbackDevice, buffer: object, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        memory.register(buffer)
    assert device.regions == {}


def test_closing_revokes_everything(memory: Registrations, device: LoopbackDevice) -> None:
    memory.alloc(64)
    memory.register(np.zeros(10))
    memory.close()
    assert device.regions == {}
