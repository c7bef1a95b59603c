"""What the gRPC service asks of the agent; the agent knows nothing of gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from kvlane.namespace import Namespace
from kvlane.verbs.protocols import QpEndpoint


class SessionNews(Enum):
    """What a watcher of a session is told."""

    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class RemoteRegion:
    """Host memory that a session's commands may name."""

    addr: int
    length: int
    rkey: int


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """The agent's side of a new session."""

    session_id: int
    endpoint: QpEndpoint
    queue_depth: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The block store's gauges and counters; the fields of the message of that name."""

    capacity_blocks: int = 0
    block_bytes: int = 0
    blocks: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    stored: int = 0
    already_stored: int = 0
    evicted: int = 0
    deleted: int = 0
    aborted: int = 0
    refused: int = 0
    pinned: int = 0
    writing: int = 0
    policy_faults: int = 0


@dataclass(frozen=True, slots=True)
class AgentStats:
    """A snapshot of the agent's state."""

    uptime_ms: int
    sessions: int
    draining: bool
    store: StoreStats
    namespaces: Sequence[tuple[Namespace, int]] = ()
    """Descriptor and number of sessions attached."""
    commands: dict[str, int] = field(default_factory=dict)
    device_counters: dict[str, int] = field(default_factory=dict)


class AgentCore(Protocol):
    """The agent behind its control plane. Methods raise ``kvlane.errors``."""

    @property
    def boot_id(self) -> bytes:
        """16 random bytes, new at every start."""

    @property
    def device_name(self) -> str:
        """The NIC, for people."""

    @property
    def max_queue_depth(self) -> int:
        """Most commands of a session in flight."""

    @property
    def max_block_bytes(self) -> int:
        """Bytes of a slot."""

    async def open_session(
        self,
        client_name: str,
        namespace: Namespace,
        endpoint: QpEndpoint,
        regions: Sequence[RemoteRegion],
        queue_depth: int,
    ) -> OpenedSession:
        """Attach and connect; ``NamespaceMismatchError``, ``CapacityError``, ``DrainingError``."""

    async def close_session(self, session_id: int, reason: str) -> None:
        """End a session; ``SessionNotFoundError``. No transfer of it runs afterwards."""

    async def register_memory(self, session_id: int, regions: Sequence[RemoteRegion]) -> None:
        """Add regions to a session; one that it has already, exactly so, stays."""

    async def deregister_memory(self, session_id: int, rkeys: Sequence[int]) -> None:
        """Take regions away, after the commands that use them have ended."""

    def watch_session(self, session_id: int) -> AsyncGenerator[tuple[SessionNews, str], None]:
        """News of a session, OPEN first, CLOSED last; closing the generator early closes the
        session."""

    async def stats(self) -> AgentStats:
        """A consistent snapshot."""

    async def drain(self) -> int:
        """Refuse new sessions from now on; return how many are open."""
