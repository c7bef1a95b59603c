"""What ``pyverbs.cmid`` refuses, and with which errno."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from emulator.cm.events import Rejected
from emulator.cm.manager import CmOptions
from emulator.pyverbs.cmid import (
    CMID,
    AddrInfo,
    CMEvent,
    ConnParam,
    JoinMCAttrEx,
)
from emulator.pyverbs.librdmacm_enums import (
    RDMA_OPTION_ID,
    RDMA_OPTION_ID_ACK_TIMEOUT,
    rdma_cm_event_type,
    rdma_port_space,
)
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from emulator.roce.attributes import QpMask
from emulator.wire.cm import RejectReason
from emulator.wire.ip_cm import PortSpace, service_id
from kvlane.verbs.enums import Mtu, QpState
from tests.support.cm_ids import (
    IP,
    PORT,
    Connection,
    Side,
    init_attr,
    listening,
    resolved,
    to_connect,
    to_listen,
)
from tests.support.cm_pair import request
from tests.support.cm_ports import Listening, ports

_E = rdma_cm_event_type


@pytest.fixture(autouse=True)
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One device, and a rendezvous that no other test sees."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ports(1):
        yield


def test_there_is_no_multicast() -> None:
    group = AddrInfo(src="230.0.0.1")
    client = resolved()
    joins: tuple[Callable[[], None], ...] = (
        lambda: client.id.join_multicast(addr=group),
        lambda: client.id.join_multicast(mc_attr=JoinMCAttrEx(addr=group, join_flags=1)),
        lambda: client.id.leave_multicast(group),
    )
    for join in joins:
        with pytest.raises(PyverbsRDMAError) as failure:
            join()
        assert failure.value.error_code == errno.EOPNOTSUPP
    with pytest.raises(PyverbsUserError):
        client.id.join_multicast()


@pytest.mark.parametrize("space", [rdma_port_space.RDMA_PS_IPOIB, rdma_port_space.RDMA_PS_IB, 7])
def test_other_port_spaces(space: int) -> None:
    with pytest.raises(PyverbsRDMAError) as failure:
        Side(space)
    assert failure.value.error_code == errno.EPROTONOSUPPORT


def test_calls_out_of_turn() -> None:
    client = resolved()
    calls: tuple[Callable[[], object], ...] = (
        client.id.accept,
        client.id.reject,
        client.id.disconnect,
        client.id.establish,
        client.id.connect,  # neither a queue pair nor its number
        client.id.get_request,
        client.id.get_remote_ece,
        client.id.get_send_comp,
        Side().id.resolve_route,
        Side().id.listen,
        lambda: client.id.query_qp(0),
        lambda: client.id.init_qp_attr(QpState.SQD),
        lambda: client.id.init_qp_attr(QpState.RTR),
        lambda: client.id.resolve_addr(to_listen()),
        lambda: client.id.set_option(1, RDMA_OPTION_ID_ACK_TIMEOUT, 3, 1),
        lambda: client.id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 32, 1),
    )
    for call in calls:
        with pytest.raises(PyverbsRDMAError) as failure:
            call()
        assert failure.value.error_code == errno.EINVAL
    client.id.create_qp(init_attr())
    with pytest.raises(PyverbsRDMAError, match="Failed to Create QP"):
        client.id.create_qp(init_attr())


def test_callers_mistakes() -> None:
    client = resolved()
    with pytest.raises(PyverbsUserError, match="only RDMA_OPTION_ID_ACK_TIMEOUT"):
        client.id.set_option(RDMA_OPTION_ID, 0, 1, 1)
    client.id.connect(ConnParam(qp_num=1))
    with pytest.raises(PyverbsUserError, match="listen ID"):
        CMID(creator=client.expect(_E.RDMA_CM_EVENT_REJECTED))
    with pytest.raises(PyverbsRDMAError, match="Cannot create CM ID"):
        CMID(creator="127.0.0.1")  # type: ignore[arg-type]
    client.id.close()
    with pytest.raises(PyverbsUserError, match="closed"):
        client.id.disconnect()


@pytest.mark.parametrize(
    "arguments", [{"src": "no such name.invalid"}, {"dst": IP, "dst_service": "x y"}]
)
def test_addresses_that_are_none(arguments: dict[str, str]) -> None:
    with pytest.raises(PyverbsRDMAError, match="Failed to get Address Info"):
        AddrInfo(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("has_queue_pair", [True, False])
@pytest.mark.parametrize(
    ("proposed", "told"),
    [(int(Mtu.MTU_2048), "2048 bytes"), (7, "code 7, which is none"), (0, "code 0")],
)
def test_a_path_mtu_that_the_port_has_not(has_queue_pair: bool, proposed: int, told: str) -> None:
    """The peer is told why, and so is the program."""
    with ports(2, mtu_bytes=1024) as (port, far):
        peer, server = Listening(far, CmOptions()), listening()
        service = service_id(PortSpace.TCP, int(PORT))
        req = replace(request(peer.gid, port.gids[0]), service_id=service, path_mtu=proposed)
        with peer.service.manager() as manager:
            comm_id = manager.connect(req, peer.service.now())
            peer.service.consumers[comm_id] = peer.sink
        asked = server.expect(_E.RDMA_CM_EVENT_CONNECT_REQUEST)
        child = CMID(creator=asked, listen_id=server.id)
        if has_queue_pair:
            child.create_qp(init_attr())
        with pytest.raises(PyverbsRDMAError, match=f"{told}.*the port has 1024") as failure:
            child.accept(ConnParam(qp_num=0x77))
        assert failure.value.error_code == errno.EINVAL
        assert peer.expect(Rejected).reason == RejectReason.INVALID_PATH_MTU


def test_the_path_mtu_that_is_proposed_is_that_of_the_port() -> None:
    with ports(1, mtu_bytes=512):
        made = Connection()
        for each in (made.client.id, made.child):
            assert each.query_qp(QpMask.PATH_MTU)[0].path_mtu == Mtu.MTU_512


def test_an_acknowledged_event_is_gone() -> None:
    event = _first_event(resolved_but_not_fetched())
    assert event.event_str() == "RDMA_CM_EVENT_ADDR_RESOLVED"
    event.ack_cm_event()
    event.close()
    assert event.event_str() == ""
    with pytest.raises(PyverbsUserError, match="acknowledged"):
        _ = event.event_type


def resolved_but_not_fetched() -> Side:
    client = Side()
    client.id.resolve_addr(to_connect())
    return client


def _first_event(side: Side) -> CMEvent:
    return CMEvent(side.channel)


def test_a_channel_that_does_not_block() -> None:
    client = Side()
    os.set_blocking(client.channel.fd, False)
    with pytest.raises(PyverbsRDMAError) as failure:
        CMEvent(client.channel)
    assert failure.value.error_code == errno.EAGAIN
    client.channel.close()
    with pytest.raises(PyverbsUserError, match="closed"):
        CMEvent(client.channel)
