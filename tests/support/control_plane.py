"""Both ends of a control plane in one process, and what its tests say to each other."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from grpc import aio

from host_driver.control import ControlClient, ControlSession
from host_driver.session_watch import SessionState
from kvlane.control.v1 import control_pb2_grpc
from kvlane.namespace import Namespace
from kvlane.verbs.protocols import QpEndpoint

GIVE_UP_S = 30
"""Only ends a test that would hang; nothing is measured by it."""

NAMESPACE = Namespace(name="chat", model="llama", kv_dtype="bfloat16", layout="NHD")
ENDPOINT = QpEndpoint(bytes(10) + b"\xff\xff\x7f\0\0\2", 40_000, 0x11, 0x22, 1024)


@dataclass(frozen=True)
class HostRegion:
    """A region as the driver knows it."""

    addr: int
    length: int
    rkey: int
    lkey: int = 0

    def close(self) -> None:
        """Nothing to release."""


class NewsLog:
    """The news of one watch, in order."""

    def __init__(self) -> None:
        self._news: queue.Queue[tuple[SessionState, str]] = queue.Queue()

    def __call__(self, state: SessionState, reason: str) -> None:
        self._news.put((state, reason))

    async def next(self) -> tuple[SessionState, str]:
        return await asyncio.to_thread(self._news.get, timeout=GIVE_UP_S)

    def has_more(self) -> bool:
        return not self._news.empty()


@asynccontextmanager
async def client_of(address: str) -> AsyncIterator[ControlClient]:
    """A client that waits as long as a test may take."""
    client = ControlClient(address, timeout_ms=GIVE_UP_S * 1000)
    try:
        yield client
    finally:
        await asyncio.to_thread(client.close)


@asynccontextmanager
async def stub_of(address: str) -> AsyncIterator[control_pb2_grpc.AgentServiceStub]:
    """The bare API, for what the driver's client would never send."""
    async with aio.insecure_channel(address) as channel:
        yield control_pb2_grpc.AgentServiceStub(channel)  # type: ignore[no-untyped-call]


async def open_session(
    client: ControlClient, namespace: Namespace = NAMESPACE, queue_depth: int = 32
) -> ControlSession:
    """A session with one region, of key 77."""
    regions = [HostRegion(0x7F00_0000_0000, 1 << 21, 77)]
    return await asyncio.to_thread(
        client.open_session, "test", namespace, ENDPOINT, regions, queue_depth
    )
