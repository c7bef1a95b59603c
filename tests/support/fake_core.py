"""A small agent core in memory: sessions and namespaces, no NIC and no store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from dpu_agent.control.core import (
    AgentStats,
    OpenedSession,
    RemoteRegion,
    SessionNews,
    StoreStats,
)
from dpu_agent.control.server import serve
from kvlane.errors import CapacityError, DrainingError, SessionNotFoundError
from kvlane.namespace import Namespace
from kvlane.verbs.protocols import QpEndpoint

AGENT_GID = bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1])


@dataclass
class FakeSession:
    """One session and the news its watcher has not read yet."""

    client_name: str
    namespace: Namespace
    endpoint: QpEndpoint
    queue_depth: int
    regions: dict[int, RemoteRegion]
    news: asyncio.Queue[tuple[SessionNews, str]] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class FakeCore:
    """``AgentCore`` in memory. Set ``failure`` to have ``stats`` raise it."""

    def __init__(self, max_sessions: int = 4) -> None:
        self.boot_id = bytes(range(16))
        self.device_name = "fake 127.0.0.1"
        self.max_queue_depth = 64
        self.max_block_bytes = 1 << 20
        self.max_sessions = max_sessions
        self.draining = False
        self.failure: Exception | None = None
        self.sessions: dict[int, FakeSession] = {}
        self.end_reasons: dict[int, str] = {}
        self.namespaces: dict[str, Namespace] = {}
        self._opened = 0

    async def open_session(
        self,
        client_name: str,
        namespace: Namespace,
        endpoint: QpEndpoint,
        regions: Sequence[RemoteRegion],
        queue_depth: int,
    ) -> OpenedSession:
        if self.draining:
            raise DrainingError("the agent is draining; connect to another one")
        if len(self.sessions) >= self.max_sessions:
            raise CapacityError(f"all {self.max_sessions} sessions are in use")
        self.namespaces.setdefault(namespace.name, namespace).require_same(namespace)
        self._opened += 1
        granted = min(queue_depth, self.max_queue_depth)
        by_rkey = {region.rkey: region for region in regions}
        self.sessions[self._opened] = FakeSession(
            client_name, namespace, endpoint, granted, by_rkey
        )
        return OpenedSession(
            session_id=self._opened,
            endpoint=QpEndpoint(AGENT_GID, 4791, 0x100 + self._opened, 0xABCDEF, 4096),
            queue_depth=granted,
        )

    async def close_session(self, session_id: int, reason: str) -> None:
        session = self._session(session_id)
        del self.sessions[session_id]
        self.end_reasons[session_id] = reason
        session.news.put_nowait((SessionNews.CLOSED, reason))
        session.ended.set()

    async def register_memory(self, session_id: int, regions: Sequence[RemoteRegion]) -> None:
        self._session(session_id).regions.update({region.rkey: region for region in regions})

    async def deregister_memory(self, session_id: int, rkeys: Sequence[int]) -> None:
        session = self._session(session_id)
        for rkey in rkeys:
            session.regions.pop(rkey, None)

    async def watch_session(self, session_id: int) -> AsyncGenerator[tuple[SessionNews, str], None]:
        session = self._session(session_id)
        try:
            yield SessionNews.OPEN, "opened"
            state = SessionNews.OPEN
            while state is not SessionNews.CLOSED:
                state, reason = await session.news.get()
                yield state, reason
        finally:
            with contextlib.suppress(SessionNotFoundError):
                await self.close_session(session_id, "the watch ended")

    async def stats(self) -> AgentStats:
        if self.failure is not None:
            raise self.failure
        sessions = self.sessions.values()
        return AgentStats(
            uptime_ms=1234,
            sessions=len(sessions),
            draining=self.draining,
            store=StoreStats(capacity_blocks=100, block_bytes=4096, blocks=7, bytes=28672),
            namespaces=[
                (known, sum(session.namespace == known for session in sessions))
                for known in self.namespaces.values()
            ],
            commands={"STORE": 3},
            device_counters={"out_of_sequence": 2},
        )

    async def drain(self) -> int:
        self.draining = True
        for session in self.sessions.values():
            session.news.put_nowait((SessionNews.DRAINING, "the agent is draining"))
        return len(self.sessions)

    def _session(self, session_id: int) -> FakeSession:
        if session_id not in self.sessions:
            raise SessionNotFoundError(f"no session {session_id}; open a new one")
        return self.sessions[session_id]


def serve_until_killed(pipe: Connection) -> None:
    """Main function of an agent process: sends its address, then serves for ever."""

    async def main() -> None:
        server = await serve(FakeCore(), "127.0.0.1:0")
        pipe.send(server.address)
        await asyncio.Event().wait()

    asyncio.run(main())
