"""The control plane over a real gRPC connection: the driver's client, the agent's server.

Held here: every call reaches the core and comes back whole, every error arrives as itself,
and nonsense is refused before it reaches the core.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import grpc
import pytest
from grpc import aio

from dpu_agent.control.server import ControlServer, serve
from host_driver.control import ControlClient
from kvlane import limits
from kvlane.control import convert
from kvlane.control.options import SERVER_OPTIONS
from kvlane.control.v1 import control_pb2, control_pb2_grpc
from kvlane.control.v1.control_pb2_grpc import add_AgentServiceServicer_to_server
from kvlane.errors import (
    GRPC_STATUS,
    AgentUnreachableError,
    CapacityError,
    DeadlineError,
    KvlaneError,
    NamespaceMismatchError,
    SessionError,
    SessionNotFoundError,
    VersionMismatchError,
)
from tests.support.control_plane import (
    ENDPOINT,
    GIVE_UP_S,
    NAMESPACE,
    HostRegion,
    NewsLog,
    client_of,
    open_session,
    stub_of,
)
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


@pytest.fixture
async def stub(server: ControlServer) -> AsyncIterator[control_pb2_grpc.AgentServiceStub]:
    async with stub_of(server.address) as stub:
        yield stub


async def test_capabilities_are_those_of_the_core(core: FakeCore, client: ControlClient) -> None:
    capabilities = await asyncio.to_thread(client.get_capabilities)
    assert capabilities.version == convert.CONTROL_VERSION
    assert capabilities.max_queue_depth == core.max_queue_depth
    assert capabilities.max_block_bytes == core.max_block_bytes
    assert capabilities.max_capsule_bytes == limits.MAX_CAPSULE_BYTES
    assert capabilities.max_keys_per_capsule == limits.MAX_KEYS_PER_CAPSULE
    assert capabilities.device == core.device_name
    assert capabilities.boot_id == core.boot_id


async def test_open_session_reaches_the_core_and_returns_its_side(
    core: FakeCore, client: ControlClient
) -> None:
    opened = await open_session(client, queue_depth=1000)
    session = core.sessions[opened.session_id]
    assert session.client_name == "test"
    assert session.namespace == NAMESPACE
    assert session.endpoint == ENDPOINT
    region = session.regions[77]
    assert (region.addr, region.length) == (0x7F00_0000_0000, 1 << 21)
    assert opened.name == f"sessions/{opened.session_id}"
    assert opened.queue_depth == core.max_queue_depth
    assert opened.endpoint.qp_num == 0x100 + opened.session_id
    assert opened.endpoint.psn == 0xABCDEF
    assert opened.boot_id == core.boot_id


async def test_memory_is_registered_and_taken_back(core: FakeCore, client: ControlClient) -> None:
    opened = await open_session(client)
    last_byte = HostRegion((1 << 64) - 4096, 4096, 78)
    await asyncio.to_thread(client.register_memory, opened.name, [last_byte])
    assert set(core.sessions[opened.session_id].regions) == {77, 78}
    await asyncio.to_thread(client.deregister_memory, opened.name, [77])
    assert set(core.sessions[opened.session_id].regions) == {78}


async def test_close_session_ends_it_once(core: FakeCore, client: ControlClient) -> None:
    opened = await open_session(client)
    await asyncio.to_thread(client.close_session, opened.name)
    assert core.sessions == {}
    with pytest.raises(SessionNotFoundError):
        await asyncio.to_thread(client.close_session, opened.name)


async def test_stats_carry_every_part(core: FakeCore, client: ControlClient) -> None:
    await open_session(client)
    stats = await asyncio.to_thread(client.stats)
    assert stats.boot_id == core.boot_id
    assert (stats.uptime_ms, stats.sessions, stats.draining) == (1234, 1, False)
    assert (stats.store.capacity_blocks, stats.store.blocks, stats.store.bytes) == (100, 7, 28672)
    assert convert.namespace_from_message(stats.namespaces[0].namespace) == NAMESPACE
    assert stats.namespaces[0].sessions == 1
    assert dict(stats.commands) == {"STORE": 3}
    assert dict(stats.device_counters) == {"out_of_sequence": 2}
    assert stats.device == core.device_name


@pytest.mark.parametrize("cls", [cls for cls in GRPC_STATUS if cls is not NamespaceMismatchError])
async def test_error_of_the_core_is_raised_as_itself(
    core: FakeCore, client: ControlClient, cls: type[KvlaneError]
) -> None:
    core.failure = cls("what is wrong: größer\nwhat to do")
    with pytest.raises(KvlaneError) as caught:
        await asyncio.to_thread(client.stats)
    assert type(caught.value) is cls
    assert str(caught.value) == str(core.failure)


async def test_fault_of_the_agent_is_an_error_and_not_a_hang(
    core: FakeCore, client: ControlClient
) -> None:
    core.failure = ZeroDivisionError("a defect")
    with pytest.raises(KvlaneError, match="UNKNOWN"):
        await asyncio.to_thread(client.stats)


@pytest.mark.parametrize("model", ["mistral", "m" * 100_000, "模" * 100_000])
async def test_namespace_mismatch_names_the_field(client: ControlClient, model: str) -> None:
    await open_session(client)
    with pytest.raises(NamespaceMismatchError) as caught:
        await open_session(client, replace(NAMESPACE, model=model))
    assert (caught.value.name, caught.value.field) == ("chat", "model")
    assert caught.value.stored == "'llama'"
    assert caught.value.offered[:5] == repr(model)[:5]


async def test_full_agent_says_so(core: FakeCore, client: ControlClient) -> None:
    core.max_sessions = 0
    with pytest.raises(CapacityError):
        await open_session(client)


async def test_other_major_version_is_refused_with_both(
    stub: control_pb2_grpc.AgentServiceStub,
) -> None:
    theirs = control_pb2.Version(major=limits.CONTROL_MAJOR + 1, minor=2, patch=3)
    for call, request in (
        (stub.GetCapabilities, control_pb2.GetCapabilitiesRequest(client_version=theirs)),
        (stub.OpenSession, control_pb2.OpenSessionRequest(client_version=theirs)),
    ):
        with pytest.raises(aio.AioRpcError) as caught:
            await call(request)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        for version in (f"{theirs.major}.2.3", ".".join(map(str, convert.CONTROL_VERSION))):
            assert version in str(caught.value.details())


class OtherAgent(control_pb2_grpc.AgentServiceServicer):
    """An agent of another major version, which has lost all methods but one."""

    async def GetCapabilities(  # noqa: N802
        self, request: control_pb2.GetCapabilitiesRequest, context: object
    ) -> control_pb2.GetCapabilitiesResponse:
        return control_pb2.GetCapabilitiesResponse(version=convert.version_message((9, 8, 7)))


async def test_client_refuses_an_agent_of_another_major_version() -> None:
    server = aio.server(options=SERVER_OPTIONS)
    add_AgentServiceServicer_to_server(OtherAgent(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with client_of(f"127.0.0.1:{port}") as client:
        with pytest.raises(VersionMismatchError, match=r"speaks control version 9\.8\.7"):
            await asyncio.to_thread(client.get_capabilities)
        with pytest.raises(VersionMismatchError, match="UNIMPLEMENTED"):
            await asyncio.to_thread(client.stats)
    await server.stop(0)


async def test_tool_without_a_version_may_ask_for_capabilities(
    stub: control_pb2_grpc.AgentServiceStub,
) -> None:
    answer = await stub.GetCapabilities(control_pb2.GetCapabilitiesRequest())
    assert convert.version_from_message(answer.version) == convert.CONTROL_VERSION


Spoil = Callable[[control_pb2.OpenSessionRequest], None]


def good_request() -> control_pb2.OpenSessionRequest:
    return control_pb2.OpenSessionRequest(
        client_version=convert.version_message(),
        client_name="test",
        namespace=convert.namespace_message(NAMESPACE),
        endpoint=convert.endpoint_message(ENDPOINT),
        regions=[control_pb2.MemoryRegion(addr=4096, length=4096, rkey=5)],
        queue_depth=1,
    )


def without(field: str) -> Spoil:
    return lambda request: request.ClearField(field)


def with_endpoint(field: str, value: int) -> Spoil:
    return lambda request: setattr(request.endpoint, field, value)


def with_regions(addr: int, length: int, rkey: int, times: int = 1) -> Spoil:
    region = control_pb2.MemoryRegion(addr=addr, length=length, rkey=rkey)
    return lambda request: request.regions.extend([region] * times)


def with_names(client: str, namespace: str) -> Spoil:
    def change(request: control_pb2.OpenSessionRequest) -> None:
        request.client_name = client
        request.namespace.name = namespace

    return change


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (without("client_version"), "client_version is missing"),
        (without("namespace"), "namespace is missing"),
        (without("endpoint"), "endpoint is missing"),
        (without("queue_depth"), "queue_depth is 0"),
        (with_endpoint("qp_num", 1 << 24), "endpoint.qp_num is a 24-bit number"),
        (with_endpoint("psn", 1 << 24), "endpoint.psn is a 24-bit number"),
        (with_endpoint("mtu_bytes", 1), "endpoint.mtu_bytes"),
        (with_regions(0, 0, 6), "regions[1]: 0 bytes"),
        (with_regions((1 << 64) - 4096, 4097, 6), "regions[1]: 4097 bytes"),
        (with_regions(0, 64, 5), "same rkey"),
        (with_regions(0, 64, 6, limits.MAX_REGIONS_PER_SESSION), "1025 regions"),
        (with_names("x" * 129, "chat"), "client_name must be printable"),
        (with_names("a\nb", "chat"), "client_name must be printable"),
        (with_names("test", ""), "a namespace needs a printable name"),
    ],
)
async def test_bad_request_is_refused_before_the_core(
    core: FakeCore,
    stub: control_pb2_grpc.AgentServiceStub,
    spoil: Spoil,
    text: str,
) -> None:
    request = good_request()
    spoil(request)
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.OpenSession(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in str(caught.value.details())
    assert core.sessions == {}
    await stub.OpenSession(good_request())
    assert len(core.sessions) == 1


@pytest.mark.parametrize(
    ("method", "request_type"),
    [
        ("WatchSession", control_pb2.WatchSessionRequest),
        ("RegisterMemory", control_pb2.RegisterMemoryRequest),
        ("DeregisterMemory", control_pb2.DeregisterMemoryRequest),
        ("CloseSession", control_pb2.CloseSessionRequest),
    ],
)
async def test_every_call_on_a_session_checks_its_name(
    stub: control_pb2_grpc.AgentServiceStub,
    method: str,
    request_type: type[control_pb2.CloseSessionRequest],
) -> None:
    for name, code in (
        ("sessions/x", grpc.StatusCode.INVALID_ARGUMENT),
        ("sessions/99", grpc.StatusCode.NOT_FOUND),
    ):
        call = getattr(stub, method)(request_type(name=name))
        with pytest.raises(aio.AioRpcError) as caught:
            await (call.read() if method == "WatchSession" else call)
        assert caught.value.code() is code


async def test_nothing_listening_is_told_with_the_way_to_start_an_agent() -> None:
    with socket.socket() as bound_not_listening:
        bound_not_listening.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{bound_not_listening.getsockname()[1]}"
        client = ControlClient(target, timeout_ms=GIVE_UP_S * 1000)
        with pytest.raises(AgentUnreachableError, match="kvlane emulate") as caught:
            await asyncio.to_thread(client.get_capabilities)
        assert target in str(caught.value)
        client.close()


async def test_listener_that_never_answers_is_a_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = ControlClient(f"127.0.0.1:{mute.getsockname()[1]}", timeout_ms=50)
        with pytest.raises(DeadlineError, match="50 ms"):
            await asyncio.to_thread(client.get_capabilities)
        client.close()


async def test_closed_client_says_so(client: ControlClient) -> None:
    client.close()
    with pytest.raises(SessionError, match="closed"):
        client.get_capabilities()
    with pytest.raises(SessionError, match="closed"):
        client.watch("sessions/1", NewsLog())
