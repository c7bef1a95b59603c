"""The control plane's server beside its API: health, reflection, and where it listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dpu_agent.control.health import SERVICE_NAME
from dpu_agent.control.server import ControlServer, serve
from host_driver.control import ControlClient
from kvlane.errors import ConfigError, DrainingError
from tests.support.control_plane import client_of, open_session
from tests.support.fake_core import FakeCore


@pytest.fixture
def core() -> FakeCore:
    return FakeCore()


@pytest.fixture
async def server(core: FakeCore) -> AsyncIterator[ControlServer]:
    server = await serve(core, "127.0.0.1:0")
    yield server
    await server.stop(0)


@pytest.fixture
async def client(server: ControlServer) -> AsyncIterator[ControlClient]:
    async with client_of(server.address) as client:
        yield client


async def health_of(channel: aio.Channel, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def test_draining_refuses_sessions_and_flips_health(
    core: FakeCore, server: ControlServer, client: ControlClient
) -> None:
    async with aio.insecure_channel(server.address) as channel:
        for service in ("", SERVICE_NAME):
            assert await health_of(channel, service) == health_pb2.HealthCheckResponse.SERVING
        await open_session(client)
        assert await asyncio.to_thread(client.drain) == 1
        for service in ("", SERVICE_NAME):
            assert await health_of(channel, service) == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(DrainingError):
        await open_session(client)
    assert (await asyncio.to_thread(client.stats)).draining


async def test_drain_by_the_agent_itself_is_the_same(server: ControlServer) -> None:
    assert await server.drain() == 0
    async with aio.insecure_channel(server.address) as channel:
        assert await health_of(channel, "") == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_reflection_lists_the_services(server: ControlServer) -> None:
    async with aio.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]))
        answer = await call.read()
        names = {service.name for service in answer.list_services_response.service}
    assert {"kvlane.control.v1.AgentService", "grpc.health.v1.Health"} <= names
    assert SERVICE_NAME == "kvlane.control.v1.AgentService"


async def test_second_agent_on_a_port_fails_and_the_first_stays(
    server: ControlServer, client: ControlClient
) -> None:
    port = server.address.rpartition(":")[2]
    with pytest.raises(ConfigError, match=f"port {port} is in use"):
        await serve(FakeCore(), server.address)
    await asyncio.to_thread(client.get_capabilities)


@pytest.mark.parametrize("listen", ["", "50057", "127.0.0.1", ":1", "h:", "h:-1", "h:65536", "h:x"])
async def test_malformed_listen_address_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="must be host:port"):
        await serve(FakeCore(), listen)
