"""The agent as it is run: ready line, control plane, data path over an emulated NIC, the ways
it ends, and what it says when it cannot start."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from kvlane.capsule import KeyStatus, Opcode, Response
from kvlane.control import convert
from kvlane.control.v1 import control_pb2
from kvlane.control.v1.control_pb2_grpc import AgentServiceStub
from kvlane.namespace import Namespace
from kvlane.verbs.backends import open_device
from tests.support.agent_process import LIMIT_S, AgentProcess, spawn
from tests.support.capsule_host import BLOCK_BYTES, CapsuleHost, key_array

SMALL_STORE = (f"--capacity={64 * BLOCK_BYTES}", f"--block-bytes={BLOCK_BYTES}")


def stub_of(channel: grpc.Channel) -> Any:
    return AgentServiceStub(channel)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentProcess]:
    with AgentProcess(*SMALL_STORE) as running:
        yield running


@pytest.fixture
def stub(agent: AgentProcess) -> Iterator[Any]:
    with grpc.insecure_channel(agent.control) as channel:
        yield stub_of(channel)


@pytest.fixture
def host() -> Iterator[CapsuleHost]:
    device = open_device("emulator", {})
    yield CapsuleHost(device, receives=8)
    device.close()


def open_request(host: CapsuleHost) -> control_pb2.OpenSessionRequest:
    region = host.remote_region
    return control_pb2.OpenSessionRequest(
        client_version=convert.version_message(),
        client_name="test",
        namespace=convert.namespace_message(Namespace()),
        endpoint=convert.endpoint_message(host.qp.endpoint),
        regions=[
            control_pb2.MemoryRegion(addr=region.addr, length=region.length, rkey=region.rkey)
        ],
        queue_depth=4,
    )


def open_session(stub: Any, host: CapsuleHost) -> str:
    opened = stub.OpenSession(open_request(host), timeout=LIMIT_S)
    host.attach(convert.endpoint_from_message(opened.endpoint), opened.session_id)
    return str(opened.name)


def turn_until(host: CapsuleHost, condition: Callable[[], bool]) -> None:
    """Be the host's data thread until something has happened."""
    while not condition():
        if not host.device.progress():
            host.device.wait(1.0)


def ask(host: CapsuleHost, opcode: Opcode, keys: np.ndarray, *buffers: int) -> Response:
    host.send(opcode, keys, host.descriptors(*buffers) if buffers else None)
    arrived: list[Response] = []

    def answered() -> bool:
        arrived.extend(host.responses())
        assert host.statuses == []
        return bool(arrived)

    turn_until(host, answered)
    (response,) = arrived
    return response


def test_capabilities_are_those_of_the_ready_line(agent: AgentProcess, stub: Any) -> None:
    said = stub.GetCapabilities(control_pb2.GetCapabilitiesRequest(), timeout=LIMIT_S)
    assert (said.boot_id, said.device) == (agent.boot_id, agent.device)
    assert said.max_block_bytes == BLOCK_BYTES
    assert convert.version_from_message(said.version) == convert.CONTROL_VERSION


def test_a_bad_gid_is_refused(stub: Any, host: CapsuleHost) -> None:
    request = open_request(host)
    request.endpoint.gid = b"\x7f\x00\x00\x01"
    with pytest.raises(grpc.RpcError) as caught:
        stub.OpenSession(request, timeout=LIMIT_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "gid" in (caught.value.details() or "")


def test_blocks_travel_both_ways(agent: AgentProcess, stub: Any, host: CapsuleHost) -> None:
    before = stub.GetStats(control_pb2.GetStatsRequest(), timeout=LIMIT_S)
    open_session(stub, host)
    host.fill(range(32))
    keys = key_array(*range(1000, 1032))
    assert ask(host, Opcode.STORE, keys, *range(32)).result == 32
    retrieved = ask(host, Opcode.RETRIEVE, keys, *range(100, 132))
    assert retrieved.results["status"].tolist() == [KeyStatus.OK] * 32
    assert retrieved.boot_id == agent.boot_id
    for index in range(32):
        assert np.array_equal(host.block(100 + index), host.block(index))
    stats = stub.GetStats(control_pb2.GetStatsRequest(), timeout=LIMIT_S)
    assert stats.store.stored - before.store.stored == 32
    assert stats.device_counters


def test_a_host_whose_control_channel_dies_loses_its_session(
    agent: AgentProcess, stub: Any, host: CapsuleHost
) -> None:
    with grpc.insecure_channel(agent.control) as channel:
        watcher = stub_of(channel)
        name = open_session(watcher, host)
        news = watcher.WatchSession(control_pb2.WatchSessionRequest(name=name), timeout=LIMIT_S)
        assert next(news).state == control_pb2.SESSION_STATE_OPEN
    closed = control_pb2.CloseSessionRequest(name=name)

    def is_gone() -> bool:
        try:
            stub.RegisterMemory(control_pb2.RegisterMemoryRequest(name=name), timeout=LIMIT_S)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.NOT_FOUND
        return False

    turn_until(host, is_gone)
    with pytest.raises(grpc.RpcError, match="not open"):
        stub.CloseSession(closed, timeout=LIMIT_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_tells_the_watchers(number: signal.Signals, host: CapsuleHost) -> None:
    with AgentProcess(*SMALL_STORE) as agent, grpc.insecure_channel(agent.control) as channel:
        stub = stub_of(channel)
        name = open_session(stub, host)
        news = stub.WatchSession(control_pb2.WatchSessionRequest(name=name), timeout=LIMIT_S)
        assert next(news).state == control_pb2.SESSION_STATE_OPEN
        agent.process.send_signal(number)
        states = [item.state for item in news]
        assert states[-1] == control_pb2.SESSION_STATE_CLOSED
        assert agent.process.wait(LIMIT_S) == 0


def test_the_end_of_standard_input_ends_it_and_standard_output_has_one_line() -> None:
    with AgentProcess(*SMALL_STORE) as agent:
        code, out, errors = agent.end()
    assert (code, out) == (0, "")
    assert "CRITICAL" not in errors


def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        out, errors = (process := spawn(f"--listen=127.0.0.1:{port}")).communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (2, "")
    (line,) = errors.splitlines()
    assert f"127.0.0.1:{port}" in line
    assert "choose another" in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--capacity=many"], "capacity_bytes"),
        (["--capacity=512TiB", "--block-bytes=1GiB"], "less"),
        (["--policy=oracle"], "oracle"),
        (["--mtu=1500"], "mtu_bytes"),
        (["--faults=gremlins=1"], "gremlins"),
        (["--listen=nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_configured_is_one_line_and_exit_code_2(
    arguments: list[str], named: str
) -> None:
    process = spawn("--listen=127.0.0.1:0", *arguments)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (2, "")
    (line,) = errors.splitlines()
    assert named in line
