"""The blocking client of an agent's control plane; asynchronous code calls it in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc

from host_driver.session_watch import OnNews, SessionWatch
from kvlane.control import convert
from kvlane.control.options import CLIENT_OPTIONS
from kvlane.control.status import error_of
from kvlane.control.v1 import control_pb2, control_pb2_grpc
from kvlane.errors import KvlaneError, SessionError
from kvlane.namespace import Namespace
from kvlane.verbs.protocols import MemoryRegion, QpEndpoint

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

DEFAULT_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class AgentCapabilities:
    """What an agent is and can do."""

    version: convert.Version
    features: frozenset[str]
    max_capsule_bytes: int
    max_keys_per_capsule: int
    max_queue_depth: int
    max_block_bytes: int
    device: str
    """The NIC, for people."""
    boot_id: bytes
    """16 bytes, new at every start of the agent."""


@dataclass(frozen=True, slots=True)
class ControlSession:
    """A session as the agent opened it."""

    name: str
    """Resource name, for the other calls."""
    session_id: int
    """Number that goes into every capsule."""
    endpoint: QpEndpoint
    """The agent's queue pair, ready to receive."""
    queue_depth: int
    """Granted commands in flight."""
    boot_id: bytes


class ControlClient:
    """One channel to one agent.

    Every call but ``watch`` ends within ``timeout_ms`` and raises a ``KvlaneError``: what
    the agent raised, ``AgentUnreachableError`` at once where nothing listens,
    ``DeadlineError`` where nothing answers in time.
    """

    def __init__(self, target: str, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        self.target = target
        """``host:port`` of the agent."""
        self.timeout_ms = timeout_ms
        self._channel = grpc.insecure_channel(target, options=CLIENT_OPTIONS)
        self._stub = control_pb2_grpc.AgentServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._watches: list[SessionWatch] = []
        self._closed = False

    def get_capabilities(self) -> AgentCapabilities:
        """Ask before anything else; ``VersionMismatchError`` for another major version."""
        request = control_pb2.GetCapabilitiesRequest(client_version=convert.version_message())
        answer: control_pb2.GetCapabilitiesResponse = self._call(
            self._stub.GetCapabilities, request
        )
        version = convert.version_from_message(answer.version)
        convert.require_same_major(version, f"the agent at {self.target}")
        return AgentCapabilities(
            version=version,
            features=frozenset(answer.features),
            max_capsule_bytes=answer.max_capsule_bytes,
            max_keys_per_capsule=answer.max_keys_per_capsule,
            max_queue_depth=answer.max_queue_depth,
            max_block_bytes=answer.max_block_bytes,
            device=answer.device,
            boot_id=answer.boot_id,
        )

    def open_session(
        self,
        client_name: str,
        namespace: Namespace,
        endpoint: QpEndpoint,
        regions: Sequence[MemoryRegion],
        queue_depth: int,
    ) -> ControlSession:
        """Attach to a namespace and connect; ``watch`` then holds the session open.

        ``NamespaceMismatchError``, ``CapacityError``, ``DrainingError``.
        """
        request = control_pb2.OpenSessionRequest(
            client_version=convert.version_message(),
            client_name=client_name,
            namespace=convert.namespace_message(namespace),
            endpoint=convert.endpoint_message(endpoint),
            regions=_region_messages(regions),
            queue_depth=queue_depth,
        )
        answer: control_pb2.OpenSessionResponse = self._call(self._stub.OpenSession, request)
        return ControlSession(
            name=answer.name,
            session_id=answer.session_id,
            endpoint=convert.endpoint_from_message(answer.endpoint),
            queue_depth=answer.queue_depth,
            boot_id=answer.boot_id,
        )

    def close_session(self, name: str) -> None:
        """End a session; no transfer of it runs when this returns."""
        self._call(self._stub.CloseSession, control_pb2.CloseSessionRequest(name=name))

    def register_memory(self, name: str, regions: Sequence[MemoryRegion]) -> None:
        """Let the session's commands name more host memory."""
        request = control_pb2.RegisterMemoryRequest(name=name, regions=_region_messages(regions))
        self._call(self._stub.RegisterMemory, request)

    def deregister_memory(self, name: str, rkeys: Sequence[int]) -> None:
        """Take memory back; no transfer touches it any more when this returns."""
        request = control_pb2.DeregisterMemoryRequest(name=name, rkeys=rkeys)
        self._call(self._stub.DeregisterMemory, request)

    def stats(self) -> control_pb2.GetStatsResponse:
        """The agent's counters and gauges."""
        answer: control_pb2.GetStatsResponse = self._call(
            self._stub.GetStats, control_pb2.GetStatsRequest()
        )
        return answer

    def drain(self) -> int:
        """Have the agent refuse new sessions; return how many are open."""
        answer: control_pb2.DrainResponse = self._call(self._stub.Drain, control_pb2.DrainRequest())
        return answer.sessions

    def watch(self, name: str, on_news: OnNews) -> SessionWatch:
        """Hold a session open and hear of it, in a thread, until it ends.

        Returns at once. ``on_news`` is called with every change of state, and exactly once
        with a terminal one: CLOSED, or LOST when the agent dies or never answers. Ending
        the watch ends the session.
        """
        self._require_open()
        call = self._stub.WatchSession(control_pb2.WatchSessionRequest(name=name))
        watch = SessionWatch(call, on_news, self._error_of)
        self._watches = [*(known for known in self._watches if known.running), watch]
        return watch

    def close(self) -> None:
        """End all watches and the connection. Calling it again does nothing."""
        self._closed = True
        for watch in self._watches:
            watch.close(self.timeout_ms)
        self._watches.clear()
        self._channel.close()

    def _call(
        self, method: grpc.UnaryUnaryMultiCallable[_Request, _Response], request: _Request
    ) -> _Response:
        self._require_open()
        try:
            return method(request, timeout=self.timeout_ms / 1000, wait_for_ready=False)
        except grpc.RpcError as failure:
            raise self._error_of(failure) from failure

    def _error_of(self, failure: grpc.RpcError) -> KvlaneError:
        return error_of(failure, self.target, self.timeout_ms)

    def _require_open(self) -> None:
        if self._closed:
            raise SessionError(f"this client of {self.target} is closed; make a new one")


def _region_messages(regions: Sequence[MemoryRegion]) -> list[control_pb2.MemoryRegion]:
    return [
        control_pb2.MemoryRegion(addr=region.addr, length=region.length, rkey=region.rkey)
        for region in regions
    ]
