"""What only an RDMA device has: limits, addresses, pinned memory, and a channel to sleep on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from emulator.pyverbs.config import FabricConfig
from emulator.pyverbs.loader import installed
from kvlane.errors import VerbsError
from kvlane.hardware.backend import open_device
from kvlane.hardware.device import HardwareDevice
from kvlane.limits import ROCE_V2_UDP_PORT
from kvlane.verbs.enums import AccessFlags, Mtu, QpState, WrOpcode
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import WC, new_records
from tests.support.verbs_backends import ALL_ACCESS, PATIENCE_S, Pair

HOUR_MS = 3_600_000.0


@pytest.fixture
def device() -> Iterator[HardwareDevice]:
    with installed(FabricConfig()):
        opened = open_device({})
        yield opened
        opened.close()


@pytest.fixture
def pair(device: HardwareDevice) -> Pair:
    return Pair(device)


# Limits


def test_depths_above_the_limits_of_the_device_are_named(device: HardwareDevice) -> None:
    cq = device.create_cq(16)
    device._limits = replace(device._limits, max_qp_wr=100, max_cqe=64, max_qp_init_rd_atom=4)
    with pytest.raises(VerbsError, match=r"at most 64 \(max_cqe\), not 65"):
        device.create_cq(65)
    for options in (QpOptions(max_send_wr=101), QpOptions(max_send_wr=1, max_recv_wr=101)):
        with pytest.raises(VerbsError, match=r"at most 100 \(max_qp_wr\), not 101"):
            device.create_qp(cq, options)
    with pytest.raises(VerbsError, match=r"max_rd_atomic: kvlane0 has at most 4"):
        device.create_qp(cq, QpOptions(max_send_wr=10, max_recv_wr=10, max_rd_atomic=5))


def test_the_limits_of_a_message_are_those_of_the_port(pair: Pair, device: HardwareDevice) -> None:
    pair.connect()
    with pytest.raises(VerbsError, match="not 4294967296"):
        pair.near.post_send(pair.sends(length=1 << 32))
    with pytest.raises(VerbsError, match="not -1"):
        pair.far.post_recv(pair.receives(length=-1))


def test_a_closed_device_makes_nothing_new(device: HardwareDevice) -> None:
    cq, memory = device.create_cq(1), device.alloc(1)
    device.close()
    for make in (
        lambda: device.create_cq(1),
        lambda: device.create_qp(cq, QpOptions()),
        lambda: device.register(memory, ALL_ACCESS),
    ):
        with pytest.raises(VerbsError, match="the device is closed"):
            make()


def test_memory_is_never_registered_on_demand(device: HardwareDevice) -> None:
    with pytest.raises(VerbsError, match="pinned, never on demand"):
        device.register(device.alloc(64), ALL_ACCESS | AccessFlags.ON_DEMAND)


def test_a_registration_that_fails_says_what_to_do(
    device: HardwareDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = device._core.binding.error

    class NoMemory(error):  # type: ignore[misc, valid-type]
        error_code = 12

    def fail(*_: Any, **__: Any) -> None:
        raise NoMemory("Failed to register a MR")

    monkeypatch.setattr(device._core.binding.mr, "MR", fail)
    with pytest.raises(VerbsError, match=r"registering 64 bytes failed.*LimitMEMLOCK"):
        device.register(device.alloc(64), ALL_ACCESS)


# Addresses


def test_an_endpoint_is_where_hardware_receives(pair: Pair) -> None:
    endpoint = pair.near.endpoint
    assert endpoint.udp_port == ROCE_V2_UDP_PORT
    assert endpoint.mtu_bytes == 4096
    assert 0 <= endpoint.psn < 1 << 24
    assert endpoint.psn != pair.far.endpoint.psn  # one in 16 million


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"udp_port": 40000}, r"UDP port 40000.*4791 only; .*listen: .*:4791"),
        ({"gid": bytes(10) + b"\xff\xff" + bytes([192, 0, 2, 1])}, "192.0.2.1 .*same family"),
        ({"gid": b"short"}, "5 bytes; a GID has 16"),
        ({"mtu_bytes": 1500}, "path MTU cannot be used: no path MTU of 1500 bytes"),
    ],
)
def test_a_peer_out_of_reach_is_refused_and_the_queue_pair_stays_as_it_was(
    change: dict[str, Any], told: str, pair: Pair
) -> None:
    with pytest.raises(VerbsError, match=told):
        pair.near.connect(replace(pair.far.endpoint, **change))
    assert pair.near.state is QpState.INIT
    pair.connect()
    assert pair.near.state is QpState.RTS


def test_a_queue_pair_that_does_not_reach_rtr_says_where_it_failed(
    pair: Pair, device: HardwareDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    binding = device._core.binding

    class Unreachable(binding.error):  # type: ignore[misc, name-defined]
        error_code = 110

    def fail(*_: Any) -> None:
        raise Unreachable("Failed to modify QP state to RTR")

    monkeypatch.setattr(binding.qp.QP, "to_rtr", fail)
    with pytest.raises(VerbsError, match=r"connecting to .*\(to_rtr\) failed.*no neighbour"):
        pair.near.connect(pair.far.endpoint)
    with pytest.raises(VerbsError, match="before the queue pair is connected"):
        pair.near.post_send(pair.sends())


def test_the_smaller_mtu_and_the_route_reach_the_device(pair: Pair) -> None:
    pair.near.connect(replace(pair.far.endpoint, mtu_bytes=512))
    qp: Any = pair.near
    attributes, _ = qp._qp.query(0)
    assert attributes.path_mtu == Mtu.MTU_512
    assert attributes.rq_psn == pair.far.endpoint.psn
    assert attributes.rnr_retry == QpOptions().rnr_retry_count


# Completions


def test_a_completion_queue_outlives_its_queue_pairs(pair: Pair) -> None:
    with pytest.raises(VerbsError, match="2 queue pairs still complete here"):
        pair.cq.close()
    pair.near.close()
    pair.far.close()
    pair.cq.close()


def test_a_number_that_is_used_again_gets_no_old_completion(pair: Pair) -> None:
    pair.connect()
    pair.near.post_send(pair.sends(3, WrOpcode.RDMA_WRITE, wr_id=[7, 8, 9]))
    pair.completions(1)
    pair.device.wait(HOUR_MS)  # fetches what has come of the other two
    cq: Any = pair.cq
    number = pair.near.endpoint.qp_num
    pair.near.close()
    assert number not in cq._works
    assert not cq._fetched


def test_a_completion_between_the_last_poll_and_the_arming_is_not_slept_over(pair: Pair) -> None:
    pair.connect()
    cq: Any = pair.cq
    inner = cq.cq
    arm = inner.req_notify

    def complete_then_arm() -> None:
        pair.near.post_send(pair.sends(opcode=WrOpcode.RDMA_WRITE, length=1))
        arrived = False
        while not arrived:
            with inner.port.nic.engine() as engine:
                arrived = engine.cqs.fill(inner.index) == 1
        arm()

    inner.req_notify = complete_then_arm
    assert pair.cq.poll(new_records(WC, 1)) == 0
    with ThreadPoolExecutor() as pool:
        pool.submit(pair.device.wait, HOUR_MS).result(PATIENCE_S)
    assert pair.cq.poll(new_records(WC, 1)) == 1


def test_events_are_acknowledged_and_the_queue_is_armed_once_for_each(pair: Pair) -> None:
    pair.connect()
    cq: Any = pair.cq
    armed: list[int] = []
    arm = cq.cq.req_notify
    cq.cq.req_notify = lambda: (armed.append(1), arm())
    for rounds in range(1, 4):
        pair.device.wait(0.0)
        pair.device.wait(0.0)
        assert len(armed) == rounds
        pair.near.post_send(pair.sends(opcode=WrOpcode.RDMA_WRITE, length=1))
        while cq._armed:
            pair.device.wait(HOUR_MS)
            pair.cq.poll(new_records(WC, 1))
        assert cq.cq.num_events == 0


def test_two_sleepers_both_hear_of_one_event(pair: Pair) -> None:
    pair.connect()
    with ThreadPoolExecutor() as pool:
        sleepers = [pool.submit(pair.device.wait, HOUR_MS) for _ in range(2)]
        while pair.device._sleepers._count < 2:  # type: ignore[attr-defined]
            pass
        pair.near.post_send(pair.sends(opcode=WrOpcode.RDMA_WRITE, length=1))
        for sleeper in sleepers:
            sleeper.result(PATIENCE_S)


def test_a_queue_that_is_made_while_others_sleep_is_watched(device: HardwareDevice) -> None:
    device.create_cq(1)
    with ThreadPoolExecutor() as pool:
        sleeper = pool.submit(device.wait, HOUR_MS)
        while device._sleepers._count < 1:
            pass
        device.create_cq(1)
        sleeper.result(PATIENCE_S)


@pytest.mark.parametrize("what", ["post_send", "post_recv"])
def test_a_batch_that_the_device_refuses_ends_the_queue_pair(
    what: str, pair: Pair, device: HardwareDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of it may have been taken; what is posted later must not hide behind "full"."""
    pair.connect()
    binding = device._core.binding

    class Refused(binding.error):  # type: ignore[misc, name-defined]
        error_code = 22

    def fail(*_: Any) -> None:
        raise Refused("Failed to post")

    monkeypatch.setattr(binding.qp.QP, what, fail)
    post, requests = getattr(pair.near, what), pair.sends() if "send" in what else pair.receives()
    with pytest.raises(VerbsError, match=r"posting .* failed"):
        post(requests)
    monkeypatch.undo()
    with pytest.raises(VerbsError, match="has ended, since posting"):
        post(requests)
    assert pair.near.state is QpState.ERR
