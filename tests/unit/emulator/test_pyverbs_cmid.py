"""``pyverbs.cmid``: connections by IP address, synchronous and not, as programs see them."""

from __future__ import annotations

import errno
import gc
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from emulator.pyverbs import cmid as module
from emulator.pyverbs.addr import AH
from emulator.pyverbs.cmid import (
    CMID,
    AddrInfo,
    ConnParam,
    UDParam,
)
from emulator.pyverbs.cq import CQ
from emulator.pyverbs.librdmacm_enums import (
    RAI_PASSIVE,
    RDMA_OPTION_ID,
    RDMA_OPTION_ID_ACK_TIMEOUT,
    rdma_cm_event_type,
)
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError
from emulator.pyverbs.qp import ECE, QP, QPAttr
from kvlane.verbs.enums import QpState, SendFlags
from tests.support.cm_ids import (
    IP,
    PORT,
    SIZE,
    UDP,
    Connection,
    Side,
    init_attr,
    listening,
    resolved,
    send,
    to_connect,
    to_listen,
)
from tests.support.cm_ports import PATIENCE_S, ports

_E = rdma_cm_event_type
QP_TIMEOUT = 1 << 9


@pytest.fixture(autouse=True)
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One device, and a rendezvous that no other test sees."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ports(1):
        yield


# Asynchronous


def test_messages_both_ways() -> None:
    made = Connection()
    assert made.client.id.qpn != made.child.qpn
    send(made.client.id, made.child)
    send(made.child, made.client.id)


def test_read_and_write() -> None:
    made = Connection()
    local, readable, writable = (
        made.client.id.reg_msgs(SIZE),
        made.child.reg_read(SIZE),
        made.child.reg_write(SIZE),
    )
    readable.write(b"r" * SIZE, SIZE)
    made.client.id.post_read(local, SIZE, readable.buf, readable.rkey, SendFlags.SIGNALED)
    made.client.id.get_send_comp()
    made.client.id.post_write(local, SIZE, writable.buf, writable.rkey, SendFlags.SIGNALED)
    made.client.id.get_send_comp()
    assert writable.read(SIZE, 0) == b"r" * SIZE


@pytest.mark.parametrize("first", ["client", "server"])
def test_disconnect(first: str) -> None:
    made = Connection()
    ids = {"client": made.client.id, "server": made.child}
    ids.pop(first).disconnect()
    (other,) = ids.values()
    for side in (made.client, made.server):
        side.expect(_E.RDMA_CM_EVENT_DISCONNECTED)
    other.disconnect()
    for cm_id in (made.client.id, made.child):
        assert cm_id.query_qp(0)[0].qp_state == QpState.ERR
    for side in (made.client, made.server):
        side.expect(_E.RDMA_CM_EVENT_TIMEWAIT_EXIT)


def test_private_data_has_the_room_that_is_left() -> None:
    asked, answered = ConnParam(data_len=56), ConnParam(data_len=196)
    asked.set_private_data(b"a" * 100)
    answered.set_private_data(b"b" * 196)
    made = Connection(asked, answered)
    assert made.request.private_data == b"a" * 56
    assert made.response.private_data == b"b" * 196


def test_reads_and_retries_are_agreed_on() -> None:
    made = Connection(
        ConnParam(resources=3, depth=5, retry=6, rnr_retry=4),
        ConnParam(resources=4, depth=7, rnr_retry=2),
    )
    client, server = made.client.id.query_qp(0)[0], made.child.query_qp(0)[0]
    assert (server.max_dest_rd_atomic, server.max_rd_atomic) == (4, 3)
    assert (client.max_dest_rd_atomic, client.max_rd_atomic) == (3, 4)
    assert (client.retry_cnt, server.retry_cnt) == (6, 6)
    # Each side says how often the other shall ask a receiver that is not ready.
    assert (client.rnr_retry, server.rnr_retry) == (2, 4)
    assert (client.dest_qp_num, server.dest_qp_num) == (made.child.qpn, made.client.id.qpn)
    assert client.sq_psn == server.rq_psn


def test_ack_timeout_option() -> None:
    def prepare(cm_id: CMID) -> None:
        cm_id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 21, 1)

    made = Connection(prepare=prepare)
    for cm_id in (made.client.id, made.child):
        assert cm_id.query_qp(QP_TIMEOUT)[0].timeout == 21


def test_ece_goes_to_the_peer() -> None:
    def prepare(cm_id: CMID) -> None:
        cm_id.set_local_ece(ECE(0x15B3, cm_id.qpn or 0))

    made = Connection(prepare=prepare)
    seen = made.child.get_remote_ece()
    assert (seen.vendor_id, seen.options) == (0x15B3, made.client.id.qpn)
    assert made.client.id.get_remote_ece().options == made.child.qpn


def test_reject() -> None:
    server, client = listening(), resolved()
    client.id.create_qp(init_attr())
    client.id.connect(ConnParam())
    request = server.expect(_E.RDMA_CM_EVENT_CONNECT_REQUEST)
    CMID(creator=request, listen_id=server.id).reject(b"not now")
    event = client.expect(_E.RDMA_CM_EVENT_REJECTED)
    assert event.private_data.rstrip(b"\0") == b"not now"
    assert event.status == 28
    assert client.id.query_qp(0)[0].qp_state == QpState.ERR


def test_a_queue_pair_of_the_programs_own() -> None:
    server, client = listening(), resolved()

    def own_queue_pair(cm_id: CMID) -> QP:
        assert cm_id.context is not None
        assert cm_id.pd is not None
        cq = CQ(cm_id.context, 10)
        return QP(cm_id.pd, init_attr(scq=cq, rcq=cq), QPAttr())

    def to_rts(cm_id: CMID, qp: QP) -> None:
        for state in (QpState.INIT, QpState.RTR, QpState.RTS):
            qp.modify(*cm_id.init_qp_attr(state))

    mine = own_queue_pair(client.id)
    client.id.connect(ConnParam(qp_num=mine.qp_num))
    request = server.expect(_E.RDMA_CM_EVENT_CONNECT_REQUEST)
    child = CMID(creator=request, listen_id=server.id)
    theirs = own_queue_pair(child)
    to_rts(child, theirs)
    child.accept(ConnParam(qp_num=theirs.qp_num))
    client.expect(_E.RDMA_CM_EVENT_CONNECT_RESPONSE)
    to_rts(client.id, mine)
    client.id.establish()
    server.expect(_E.RDMA_CM_EVENT_ESTABLISHED)
    assert client.is_silent()
    assert mine.query(0)[0].dest_qp_num == theirs.qp_num
    assert theirs.query(0)[0].dest_qp_num == mine.qp_num
    with pytest.raises(PyverbsRDMAError, match="Failed to Post Send"):
        client.id.post_send(client.id.reg_msgs(1))


def test_datagrams() -> None:
    server, client = listening(UDP), resolved(UDP)
    client.id.create_qp(init_attr(UDP))
    asked = ConnParam(data_len=180)
    asked.set_private_data(b"q" * 180)
    client.id.connect(asked)
    request = server.expect(_E.RDMA_CM_EVENT_CONNECT_REQUEST)
    assert request.private_data == b"q" * 180
    child = CMID(creator=request, listen_id=server.id)
    child.create_qp(init_attr(UDP))
    child.accept()
    peer = UDParam(client.expect(_E.RDMA_CM_EVENT_ESTABLISHED))
    assert (peer.qp_num, peer.qkey) == (child.qpn, 0x01234567)
    assert server.is_silent()
    inbox, outbox = child.reg_msgs(SIZE + 40), client.id.reg_msgs(SIZE)
    outbox.write(b"d" * SIZE, SIZE)
    child.post_recv(inbox)
    assert client.id.pd is not None
    client.id.post_ud_send(outbox, AH(client.id.pd, attr=peer.ah_attr), rqpn=peer.qp_num)
    client.id.get_send_comp()
    child.get_recv_comp()
    assert inbox.read(SIZE, 40) == b"d" * SIZE


def test_a_datagram_service_may_refuse() -> None:
    server, client = listening(UDP), resolved(UDP)
    client.id.create_qp(init_attr(UDP))
    client.id.connect()
    request = server.expect(_E.RDMA_CM_EVENT_CONNECT_REQUEST)
    CMID(creator=request, listen_id=server.id).reject()
    assert client.expect(_E.RDMA_CM_EVENT_UNREACHABLE).status == 2


# Who listens


def test_nobody_listens() -> None:
    client = resolved()
    client.id.create_qp(init_attr())
    client.id.connect(ConnParam())
    assert client.expect(_E.RDMA_CM_EVENT_REJECTED).status == 8


def test_an_address_in_use() -> None:
    server, second = listening(), Side()
    second.id.bind_addr(to_listen())
    with pytest.raises(PyverbsRDMAError, match="Listen Failed") as failure:
        second.id.listen()
    assert failure.value.error_code == errno.EADDRINUSE
    server.id.close()
    second.id.listen()


def test_any_port() -> None:
    first, second = Side(), Side()
    for side in (first, second):
        side.id.bind_addr(to_listen(port="0"))
        side.id.listen()
    chosen = {side.id.endpoint.local.port for side in (first, second)}  # type: ignore[union-attr]
    assert len(chosen) == 2


def test_all_addresses() -> None:
    server = Side()
    server.id.bind_addr(AddrInfo(src_service=PORT, flags=RAI_PASSIVE))
    server.id.listen()
    client = resolved()
    client.id.connect(ConnParam(qp_num=5))
    server.expect(_E.RDMA_CM_EVENT_CONNECT_REQUEST)


def test_a_listener_that_closes_refuses_those_who_wait() -> None:
    server, client = listening(), resolved()
    client.id.connect(ConnParam(qp_num=5))
    assert select.select([server.channel.fd], [], [], PATIENCE_S)[0]
    server.id.close()
    client.expect(_E.RDMA_CM_EVENT_REJECTED)


def test_backlog() -> None:
    server = Side()
    server.id.bind_addr(to_listen())
    server.id.listen(backlog=1)
    clients = [resolved(), resolved()]
    clients[0].id.connect(ConnParam(qp_num=5))
    server.expect(_E.RDMA_CM_EVENT_CONNECT_REQUEST)
    clients[1].id.connect(ConnParam(qp_num=6))
    assert clients[1].expect(_E.RDMA_CM_EVENT_REJECTED).status == 3


def test_an_address_that_is_of_no_device() -> None:
    elsewhere = AddrInfo(src="192.0.2.1", dst="192.0.2.2", dst_service=PORT)
    client = Side()
    client.id.resolve_addr(elsewhere)
    assert client.expect(_E.RDMA_CM_EVENT_ADDR_ERROR).status == -errno.ENODEV
    with pytest.raises(PyverbsRDMAError) as failure:
        client.id.bind_addr(elsewhere)
    assert failure.value.error_code == errno.ENODEV


def test_without_a_source_the_device_of_the_destination_is_taken() -> None:
    client = Side()
    client.id.resolve_addr(AddrInfo(dst=IP, dst_service=PORT))
    client.expect(_E.RDMA_CM_EVENT_ADDR_RESOLVED)
    assert str(client.id.endpoint.local.ip) == IP  # type: ignore[union-attr]


# Synchronous


@pytest.fixture
def other_thread() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


def test_synchronous(other_thread: Callable[..., Future[Any]]) -> None:
    listener = CMID(creator=to_listen(), qp_init_attr=init_attr())
    listener.listen()

    def serve() -> CMID:
        child = listener.get_request()
        child.accept()
        return child

    serving = other_thread(serve)
    client = CMID(creator=to_connect(), qp_init_attr=init_attr())
    client.connect()
    child: CMID = serving.result(PATIENCE_S)
    send(client, child)
    send(child, client)
    leaving = other_thread(child.disconnect)
    client.disconnect()
    leaving.result(PATIENCE_S)
    client.disconnect()


def test_synchronous_refusal(other_thread: Callable[..., Future[Any]]) -> None:
    listener = CMID(creator=to_listen(), qp_init_attr=init_attr())
    listener.listen()
    serving = other_thread(lambda: listener.get_request().reject(b"no"))
    client = CMID(creator=to_connect(), qp_init_attr=init_attr())
    with pytest.raises(PyverbsRDMAError, match="Failed to Connect") as failure:
        client.connect()
    assert failure.value.error_code == errno.ECONNREFUSED
    serving.result(PATIENCE_S)


def test_synchronous_and_nobody_listens() -> None:
    client = CMID(creator=to_connect(), qp_init_attr=init_attr())
    with pytest.raises(PyverbsRDMAError) as failure:
        client.connect()
    assert failure.value.error_code == errno.ECONNREFUSED


def test_synchronous_and_no_such_device() -> None:
    with pytest.raises(PyverbsRDMAError, match="Failed to Resolve Address") as failure:
        CMID(creator=AddrInfo(src="192.0.2.1", dst="192.0.2.2", dst_service=PORT))
    assert failure.value.error_code == errno.ENODEV


# Two processes


SERVER = f"""
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.librdmacm_enums import RAI_PASSIVE
from pyverbs.qp import QPCap, QPInitAttr
listener = CMID(creator=AddrInfo(src="{IP}", src_service="0", flags=RAI_PASSIVE),
                qp_init_attr=QPInitAttr(2, cap=QPCap()))
listener.listen()
print(listener.endpoint.local.port, flush=True)
child = listener.get_request()
mr = child.reg_msgs(5)
child.post_recv(mr)
child.accept()
child.get_recv_comp()
print(mr.read(5, 0).decode(), flush=True)
child.disconnect()
"""


def test_another_process_is_found_by_address_and_port() -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "emulator.pyverbs", "-c", SERVER],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TMPDIR": tempfile.gettempdir(),
        },
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        client = CMID(creator=to_connect(port=port), qp_init_attr=init_attr())
        client.connect()
        mr = client.reg_msgs(5)
        mr.write(b"hello", 5)
        client.post_send(mr)
        client.get_send_comp()
        assert server.stdout.readline().strip() == "hello"
        client.disconnect()
        assert server.wait(PATIENCE_S) == 0
    finally:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


# Nothing is left


def test_nothing_is_left_open_by_ids() -> None:
    def cycle() -> None:
        made = Connection()
        for cm_id in (made.client.id, made.child, made.server.id):
            cm_id.close()
        for side in (made.client, made.server):
            side.channel.close()

    cycle()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        cycle()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_an_id_that_is_collected_leaves_its_connection() -> None:
    made = Connection()
    del made.client.id
    gc.collect()
    made.server.expect(_E.RDMA_CM_EVENT_DISCONNECTED)


def test_an_id_that_is_collected_inside_the_service_is_closed_by_its_thread() -> None:
    made = Connection()
    service = made.child.endpoint.service  # type: ignore[union-attr]
    closed = threading.Event()
    close = made.client.id.close

    def told() -> None:
        close()
        closed.set()

    made.client.id.close = told  # type: ignore[method-assign]
    with service.manager():
        made.client.id.__del__()
        assert not closed.is_set()
    assert closed.wait(PATIENCE_S)


def test_the_module_has_the_names_of_pyverbs() -> None:
    assert set(module.__all__) == {
        *("CMID", "AddrInfo", "CMEvent", "CMEventChannel", "ConnParam", "JoinMCAttrEx", "UDParam")
    }
