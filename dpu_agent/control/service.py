"""The control API over the agent's core: checks requests, turns errors into statuses."""

# The names and arguments of the methods are those of the generated base class.
# ruff: noqa: N802, ARG002

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from typing import Any

from grpc import aio

from dpu_agent.control.core import AgentCore, AgentStats, SessionNews
from dpu_agent.control.health import AgentHealth
from dpu_agent.control.requests import (
    regions_from_messages,
    require_compatible_client,
    require_complete,
)
from kvlane import limits
from kvlane.control import convert
from kvlane.control.status import status_of
from kvlane.control.v1 import control_pb2, control_pb2_grpc
from kvlane.errors import KvlaneError

Context = aio.ServicerContext[Any, Any]

_STATES = {
    SessionNews.OPEN: control_pb2.SESSION_STATE_OPEN,
    SessionNews.DRAINING: control_pb2.SESSION_STATE_DRAINING,
    SessionNews.CLOSED: control_pb2.SESSION_STATE_CLOSED,
}


@asynccontextmanager
async def _errors_as_status(context: Context) -> AsyncIterator[None]:
    """Answer a ``KvlaneError`` with its status; any other exception is a fault of the agent,
    which gRPC logs and answers with UNKNOWN."""
    try:
        yield
    except KvlaneError as error:
        code, text, metadata = status_of(error)
        await context.abort(code, text, metadata)


class AgentService(control_pb2_grpc.AgentServiceServicer):
    """``kvlane.control.v1.AgentService``; control.proto says what each method does."""

    def __init__(self, core: AgentCore, health: AgentHealth) -> None:
        self._core = core
        self._health = health

    async def GetCapabilities(
        self, request: control_pb2.GetCapabilitiesRequest, context: Context
    ) -> control_pb2.GetCapabilitiesResponse:
        """Tell what the agent can do."""
        async with _errors_as_status(context):
            require_compatible_client(request)
        return control_pb2.GetCapabilitiesResponse(
            version=convert.version_message(),
            max_capsule_bytes=limits.MAX_CAPSULE_BYTES,
            max_keys_per_capsule=limits.MAX_KEYS_PER_CAPSULE,
            max_queue_depth=self._core.max_queue_depth,
            max_block_bytes=self._core.max_block_bytes,
            device=self._core.device_name,
            boot_id=self._core.boot_id,
        )

    async def OpenSession(
        self, request: control_pb2.OpenSessionRequest, context: Context
    ) -> control_pb2.OpenSessionResponse:
        """Attach and connect."""
        async with _errors_as_status(context):
            require_compatible_client(request)
            require_complete(request)
            opened = await self._core.open_session(
                request.client_name,
                convert.namespace_from_message(request.namespace),
                convert.endpoint_from_message(request.endpoint),
                regions_from_messages(request.regions),
                request.queue_depth,
            )
        return control_pb2.OpenSessionResponse(
            name=convert.session_name(opened.session_id),
            session_id=opened.session_id,
            endpoint=convert.endpoint_message(opened.endpoint),
            queue_depth=opened.queue_depth,
            boot_id=self._core.boot_id,
        )

    async def WatchSession(
        self, request: control_pb2.WatchSessionRequest, context: Context
    ) -> None:
        """Pass news on until the session or the client ends.

        News are written and not yielded: gRPC cancels this coroutine when the client goes
        away, wherever it waits, and ``aclosing`` then ends the session at once. A generator
        that waits at its ``yield`` would be left to the garbage collector.
        """
        async with _errors_as_status(context):
            session_id = convert.parse_session_name(request.name)
            async with aclosing(self._core.watch_session(session_id)) as news:
                async for state, reason in news:
                    await context.write(
                        control_pb2.WatchSessionResponse(state=_STATES[state], reason=reason)
                    )

    async def RegisterMemory(
        self, request: control_pb2.RegisterMemoryRequest, context: Context
    ) -> control_pb2.RegisterMemoryResponse:
        """Add regions to a session."""
        async with _errors_as_status(context):
            session_id = convert.parse_session_name(request.name)
            await self._core.register_memory(session_id, regions_from_messages(request.regions))
        return control_pb2.RegisterMemoryResponse()

    async def DeregisterMemory(
        self, request: control_pb2.DeregisterMemoryRequest, context: Context
    ) -> control_pb2.DeregisterMemoryResponse:
        """Take regions away from a session."""
        async with _errors_as_status(context):
            session_id = convert.parse_session_name(request.name)
            await self._core.deregister_memory(session_id, list(request.rkeys))
        return control_pb2.DeregisterMemoryResponse()

    async def CloseSession(
        self, request: control_pb2.CloseSessionRequest, context: Context
    ) -> control_pb2.CloseSessionResponse:
        """End a session."""
        async with _errors_as_status(context):
            session_id = convert.parse_session_name(request.name)
            await self._core.close_session(session_id, "closed by the host")
        return control_pb2.CloseSessionResponse()

    async def GetStats(
        self, request: control_pb2.GetStatsRequest, context: Context
    ) -> control_pb2.GetStatsResponse:
        """Counters and gauges."""
        async with _errors_as_status(context):
            stats = await self._core.stats()
        return self._stats_message(stats)

    async def Drain(
        self, request: control_pb2.DrainRequest, context: Context
    ) -> control_pb2.DrainResponse:
        """Refuse new sessions from now on."""
        async with _errors_as_status(context):
            return control_pb2.DrainResponse(sessions=await self.drain())

    async def drain(self) -> int:
        """Drain the core and say so in health; return how many sessions are open."""
        sessions = await self._core.drain()
        await self._health.set_serving(False)
        return sessions

    def _stats_message(self, stats: AgentStats) -> control_pb2.GetStatsResponse:
        return control_pb2.GetStatsResponse(
            boot_id=self._core.boot_id,
            uptime_ms=stats.uptime_ms,
            sessions=stats.sessions,
            draining=stats.draining,
            store=control_pb2.StoreStats(**asdict(stats.store)),
            namespaces=[
                control_pb2.NamespaceStats(
                    namespace=convert.namespace_message(namespace), sessions=sessions
                )
                for namespace, sessions in stats.namespaces
            ],
            commands=stats.commands,
            device_counters=stats.device_counters,
            device=self._core.device_name,
        )
