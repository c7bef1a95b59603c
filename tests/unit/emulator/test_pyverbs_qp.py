"""Queue pairs: making and closing them, their states, and posting lists of work requests."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emulator.pyverbs import devices
from emulator.pyverbs import libibverbs_enums as e
from emulator.pyverbs.addr import AHAttr
from emulator.pyverbs.cq import CQ
from emulator.pyverbs.device import Context
from emulator.pyverbs.mr import MW, MWBind, MWBindInfo
from emulator.pyverbs.pd import PD
from emulator.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from emulator.pyverbs.qp import ECE, QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from emulator.pyverbs.wr import RecvWR, SendWR
from tests.support.pyverbs_endpoints import (
    FLUSHED,
    GRH_BYTES,
    PATIENCE_S,
    QKEY,
    RC,
    SUCCESS,
    UC,
    UD,
    Endpoint,
    async_event,
    connected,
    is_readable,
    poll,
)

STATE = e.IBV_QP_STATE


@pytest.fixture
def device() -> Iterator[str]:
    with devices(1) as found:
        yield found[0].name


def refused(action: Callable[[], object], code: int) -> None:
    with pytest.raises(PyverbsRDMAError) as caught:
        action()
    assert caught.value.error_code == code


def to_error(endpoint: Endpoint) -> None:
    endpoint.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), STATE)


def init_attr(cq: CQ, **changes: Any) -> QPInitAttr:
    attr = QPInitAttr(qp_type=RC, scq=cq, rcq=cq, cap=QPCap())
    for name, value in changes.items():
        setattr(attr, name, value)
    return attr


# Making and closing


@pytest.mark.parametrize(
    ("kind", "state"),
    [(RC, e.IBV_QPS_INIT), (UC, e.IBV_QPS_INIT), (UD, e.IBV_QPS_RTS)],
)
def test_with_attributes_it_is_brought_on_as_far_as_it_goes_alone(
    device: str, kind: int, state: int
) -> None:
    context = Context(name=device)
    pd, cq = PD(context), CQ(context, 10)
    attr = init_attr(cq, qp_type=kind)
    assert QP(pd, attr).qp_state == e.IBV_QPS_RESET
    qp = QP(pd, attr, QPAttr())
    assert qp.qp_state == state
    assert qp.qp_type == kind


def test_a_failure_to_bring_it_on_leaves_no_queue_pair(device: str) -> None:
    context = Context(name=device)
    pd, cq = PD(context), CQ(context, 10)
    refused(lambda: QP(pd, init_attr(cq), QPAttr(port_num=9)), errno.EINVAL)
    with context.port.nic.engine() as engine:
        assert not engine.qps.table.in_use.any()


@pytest.mark.parametrize(
    "changes",
    [
        {"max_send_wr": 0xFFFFFFFF},
        {"max_recv_wr": 0xFFFFFFFF},
        {"max_send_sge": 0xFFFF},
        {"max_recv_sge": 0xFFFF},
        {"max_inline_data": 1 << 20},
        {"qp_type": 77},
        {"recv_cq": None},
    ],
)
def test_what_the_device_cannot_have_is_refused(device: str, changes: dict[str, Any]) -> None:
    context = Context(name=device)
    pd, cq = PD(context), CQ(context, 10)
    refused(lambda: QP(pd, init_attr(cq, **changes)), errno.EINVAL)


@pytest.mark.parametrize(
    "kind", [e.IBV_QPT_RAW_PACKET, e.IBV_QPT_XRC_SEND, e.IBV_QPT_XRC_RECV, e.IBV_QPT_DRIVER]
)
def test_kinds_that_are_not_emulated_are_not_supported(device: str, kind: int) -> None:
    context = Context(name=device)
    pd, cq = PD(context), CQ(context, 10)
    refused(lambda: QP(pd, init_attr(cq, qp_type=kind)), errno.EOPNOTSUPP)


def extended(pd: PD, cq: CQ, **changes: Any) -> QPInitAttrEx:
    attr = QPInitAttrEx(qp_type=RC, scq=cq, rcq=cq, cap=QPCap(), pd=pd)
    attr.comp_mask = e.IBV_QP_INIT_ATTR_PD
    for name, value in changes.items():
        setattr(attr, name, value)
    return attr


def test_a_context_creates_with_extended_attributes(device: str) -> None:
    context = Context(name=device)
    pd, cq = PD(context), CQ(context, 10)
    assert QP(context, extended(pd, cq), QPAttr()).qp_state == e.IBV_QPS_INIT
    refused(lambda: QP(context, extended(pd, cq, comp_mask=0)), errno.EINVAL)
    flags = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_CREATE_FLAGS
    assert QP(context, extended(pd, cq, comp_mask=flags)).qp_num
    refused(
        lambda: QP(context, extended(pd, cq, comp_mask=flags, create_flags=2)), errno.EOPNOTSUPP
    )
    hashing = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_RX_HASH
    refused(lambda: QP(context, extended(pd, cq, comp_mask=hashing)), errno.EOPNOTSUPP)


def test_creator_and_attributes_must_fit(device: str) -> None:
    context = Context(name=device)
    pd, cq = PD(context), CQ(context, 10)
    for creator, attr in ((context, init_attr(cq)), (pd, extended(pd, cq)), (cq, init_attr(cq))):
        with pytest.raises(TypeError):
            QP(creator, attr)  # type: ignore[arg-type]
    with pytest.raises(PyverbsUserError, match="expected a CQ"):
        QPInitAttr(scq=pd)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected an SRQ"):
        QPInitAttr(srq=cq)  # type: ignore[arg-type]


def test_parts_of_two_devices_do_not_fit() -> None:
    with devices(2) as found:
        first, second = (Context(name=device.name) for device in found)
        pd, foreign = PD(first), CQ(second, 10)
        refused(lambda: QP(pd, init_attr(foreign)), errno.EINVAL)


@pytest.mark.parametrize("parent", ["context", "pd", "cq"])
def test_closing_what_it_needs_closes_it(device: str, parent: str) -> None:
    endpoint = Endpoint(device)
    port = endpoint.context.port
    getattr(endpoint, parent).close()
    with pytest.raises(PyverbsUserError, match="closed"):
        print(endpoint.qp.qp_state)
    with port.nic.engine() as engine:
        assert not engine.qps.table.in_use.any()
    endpoint.qp.close()
    endpoint.close()


def test_a_queue_pair_that_nobody_holds_is_destroyed(device: str) -> None:
    context = Context(name=device)
    pd, cq = PD(context), CQ(context, 10)
    attr = init_attr(cq)
    for _ in range(2 * context.query_device().max_qp):
        QP(pd, attr)
        gc.collect(0)


def test_numbers_are_not_given_again(device: str) -> None:
    context = Context(name=device)
    pd, cq = PD(context), CQ(context, 10)
    numbers = []
    for _ in range(5):
        with QP(pd, init_attr(cq)) as qp:
            numbers.append(qp.qp_num)
    assert len(set(numbers)) == 5
    assert all(1 < number < 1 << 24 for number in numbers)


# States and attributes


def test_attributes_can_be_queried(device: str) -> None:
    client, server = connected(device)
    attr, how = client.qp.query(STATE)
    assert attr.qp_state == attr.cur_qp_state == e.IBV_QPS_RTS
    assert attr.dest_qp_num == server.qp.qp_num
    assert (attr.path_mtu, attr.timeout, attr.retry_cnt) == (e.IBV_MTU_1024, 14, 7)
    assert (attr.max_rd_atomic, attr.max_dest_rd_atomic) == (4, 4)
    assert attr.ah_attr.is_global == 1
    assert attr.ah_attr.dgid == client.context.query_gid(1, 0).gid
    assert (attr.cap.max_send_wr, how.cap.max_recv_wr, how.max_inline_data) == (16, 16, 64)
    assert how.send_cq is client.cq
    assert attr.sq_draining == 0
    assert "Dest QP number" in str(attr)


def test_no_path_carries_more_than_the_port() -> None:
    with devices(1, mtu_bytes=1024) as found:
        endpoint = Endpoint(found[0].name)
        active = endpoint.context.query_port(1).active_mtu
        assert active == e.IBV_MTU_1024
        attr = QPAttr(path_mtu=active + 1)
        attr.ah_attr = endpoint.path
        attr.dest_qp_num = endpoint.qp.qp_num
        before = str(endpoint.qp.query(STATE)[0])
        refused(lambda: endpoint.qp.to_rtr(attr), errno.EINVAL)
        assert str(endpoint.qp.query(STATE)[0]) == before
        attr.path_mtu = active
        endpoint.qp.to_rtr(attr)
        assert endpoint.qp.qp_state == e.IBV_QPS_RTR


@pytest.mark.parametrize(("nbytes", "status"), [(1024, SUCCESS), (1025, e.IBV_WC_LOC_LEN_ERR)])
def test_a_datagram_is_as_long_as_the_ports_mtu(nbytes: int, status: int) -> None:
    with devices(1, mtu_bytes=1024) as found:
        client, server = connected(found[0].name, UD)
        server.qp.post_recv(server.recv_wr(0, 4096))
        request = client.send_wr(length=nbytes)
        request.set_wr_ud(client.ah, server.qp.qp_num, QKEY)
        client.qp.post_send(request)
        assert [wc.status for wc in poll(client.cq)] == [status]


def test_there_is_one_p_key(device: str) -> None:
    endpoint = Endpoint(device)
    assert endpoint.context.query_port(1).pkey_tbl_len == 1
    attr = QPAttr()
    attr.pkey_index = 1
    refused(lambda: endpoint.qp.modify(attr, e.IBV_QP_PKEY_INDEX), errno.EINVAL)
    assert endpoint.qp.query(STATE)[0].pkey_index == 0


def test_a_new_queue_pair_has_no_path(device: str) -> None:
    attr, _ = Endpoint(device).qp.query(STATE)
    assert attr.ah_attr.is_global == 0
    assert attr.ah_attr.dgid is None


def test_setting_a_path_copies_it() -> None:
    attr, path = QPAttr(), AHAttr(sl=3)
    attr.ah_attr = path
    path.sl = 4
    attr.ah_attr.sl = 5
    assert attr.ah_attr.sl == 3
    attr.ah_attr = None  # type: ignore[assignment]
    assert attr.ah_attr.sl == 3
    attr.alt_ah_attr = path
    assert (attr.alt_ah_attr.sl, attr.ah_attr.sl) == (4, 3)


def test_steps_between_are_taken_where_needed(device: str) -> None:
    context = Context(name=device)
    qp = QP(PD(context), init_attr(CQ(context, 10), qp_type=UD))
    attr = QPAttr()
    attr.qkey = QKEY
    qp.to_rts(attr)
    assert qp.qp_state == e.IBV_QPS_RTS
    assert qp.query(0)[0].qkey == QKEY
    qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), STATE)
    assert qp.qp_state == e.IBV_QPS_RESET


@pytest.mark.parametrize(
    ("change", "mask"),
    [
        ({"qp_state": e.IBV_QPS_RTR}, STATE),
        ({"qp_state": 99}, STATE),
        ({"qp_state": e.IBV_QPS_RTS}, STATE | e.IBV_QP_TIMEOUT),
        ({"timeout": 32}, e.IBV_QP_TIMEOUT),
        ({}, e.IBV_QP_CAP),
    ],
)
def test_illegal_modifications_are_refused_and_change_nothing(
    device: str, change: dict[str, int], mask: int
) -> None:
    client, _ = connected(device)
    attr = QPAttr()
    for name, value in change.items():
        setattr(attr, name, value)
    refused(lambda: client.qp.modify(attr, mask), errno.EINVAL)
    assert client.qp.qp_state == e.IBV_QPS_RTS


def test_a_path_without_a_gid_is_refused(device: str) -> None:
    endpoint = Endpoint(device)
    attr = QPAttr()
    refused(lambda: endpoint.qp.to_rtr(attr), errno.EINVAL)
    attr.ah_attr = endpoint.path
    attr.ah_attr = _at_gid_index(endpoint, 3)
    refused(lambda: endpoint.qp.to_rtr(attr), errno.EINVAL)
    assert endpoint.qp.qp_state == e.IBV_QPS_INIT


def _at_gid_index(endpoint: Endpoint, index: int) -> AHAttr:
    path = endpoint.path
    path.sgid_index = index
    return path


def test_a_drained_send_queue_is_told(device: str) -> None:
    client, _ = connected(device)
    attr = QPAttr(qp_state=e.IBV_QPS_SQD)
    attr.en_sqd_async_notify = 1
    client.qp.modify(attr, STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
    assert async_event(client.context) == e.IBV_EVENT_SQ_DRAINED
    assert client.qp.query(0)[0].sq_draining == 0


def test_enhanced_connections_are_those_of_no_vendor(device: str) -> None:
    qp = Endpoint(device).qp
    assert qp.query_ece().vendor_id == 0
    qp.set_ece(ECE())
    refused(lambda: qp.set_ece(ECE(vendor_id=5)), errno.EOPNOTSUPP)
    assert qp.query_data_in_order(e.IBV_WR_SEND) == 0
    assert "0x5" in str(ECE(vendor_id=5))


# Posting


@pytest.mark.parametrize("kind", [RC, UC])
def test_a_message_arrives(device: str, kind: int) -> None:
    client, server = connected(device, kind)
    client.mr.write("hello", 5)
    server.qp.post_recv(server.recv_wr(100, 64))
    client.qp.post_send(client.send_wr(length=5))
    assert [wc.status for wc in poll(client.cq) + poll(server.cq)] == [SUCCESS] * 2
    assert server.mr.read(5, 100) == b"hello"


def test_a_datagram_arrives_behind_its_network_header(device: str) -> None:
    client, server = connected(device, UD)
    client.mr.write("hello", 5)
    server.qp.post_recv(server.recv_wr(0, GRH_BYTES + 5))
    wr = client.send_wr(length=5)
    wr.set_wr_ud(client.ah, server.qp.qp_num, QKEY)
    client.qp.post_send(wr)
    (received,) = poll(server.cq)
    assert (received.byte_len, received.src_qp) == (GRH_BYTES + 5, client.qp.qp_num)
    assert received.wc_flags == e.IBV_WC_GRH
    assert server.mr.read(5, GRH_BYTES) == b"hello"


def test_a_list_is_posted_in_order(device: str) -> None:
    client, server = connected(device)
    last = server.recv_wr(64, 64, wr_id=2)
    server.qp.post_recv(server.recv_wr(0, 64, wr_id=1, next_wr=last))
    second = client.send_wr(length=2, wr_id=4)
    client.qp.post_send(client.send_wr(length=1, wr_id=3, next_wr=second))
    assert [(wc.wr_id, wc.byte_len) for wc in poll(server.cq, 2)] == [(1, 1), (2, 2)]
    assert [wc.wr_id for wc in poll(client.cq, 2)] == [3, 4]


def test_a_list_is_posted_up_to_the_bad_one(device: str) -> None:
    client, server = connected(device)
    server.qp.post_recv(server.recv_wr(0, 64))
    too_many = [client.sge(0, 1)] * 5
    third = client.send_wr(wr_id=3)
    second = SendWR(wr_id=2, num_sge=5, sg=too_many, next_wr=third)
    first = client.send_wr(wr_id=1, next_wr=second)
    bad = client.send_wr(wr_id=99)
    refused(lambda: client.qp.post_send(first, bad), errno.EINVAL)
    assert (bad.wr_id, bad.next_wr) == (2, third)
    assert [wc.wr_id for wc in poll(client.cq)] == [1]
    assert client.cq.poll() == (0, [])


def test_a_full_receive_queue_takes_what_fits(device: str) -> None:
    client, server = connected(device, cap=QPCap(max_send_wr=4, max_recv_wr=2))
    third = server.recv_wr(0, 64, wr_id=3)
    second = server.recv_wr(0, 64, wr_id=2, next_wr=third)
    first = server.recv_wr(0, 64, wr_id=1, next_wr=second)
    bad = RecvWR()
    refused(lambda: server.qp.post_recv(first, bad), errno.ENOMEM)
    assert bad.wr_id == 3
    for _ in range(2):
        client.qp.post_send(client.send_wr())
    assert [wc.wr_id for wc in poll(server.cq, 2)] == [1, 2]


def test_a_full_send_queue_refuses(device: str) -> None:
    client, server = connected(device, cap=QPCap(max_send_wr=2, max_recv_wr=10))
    # Nothing is received yet, so both requests stay outstanding.
    for wr_id in (1, 2):
        client.qp.post_send(client.send_wr(wr_id=wr_id))
    refused(lambda: client.qp.post_send(client.send_wr(wr_id=3)), errno.ENOMEM)
    for _ in range(2):
        server.qp.post_recv(server.recv_wr(0, 64))
    assert [wc.wr_id for wc in poll(client.cq, 2)] == [1, 2]
    client.qp.post_send(client.send_wr(wr_id=4))


def test_what_the_queue_pair_cannot_do_is_refused(device: str) -> None:
    client, _ = connected(device, UC)
    read = client.send_wr(e.IBV_WR_RDMA_READ)
    refused(lambda: client.qp.post_send(read), errno.EINVAL)
    datagrams, _ = connected(device, UD)
    refused(lambda: datagrams.qp.post_send(datagrams.send_wr()), errno.EINVAL)
    inline = client.send_wr(length=65, send_flags=e.IBV_SEND_INLINE)
    refused(lambda: client.qp.post_send(inline), errno.EINVAL)
    short = client.send_wr()
    short.num_sge = 2
    refused(lambda: client.qp.post_send(short), errno.EINVAL)
    receive = RecvWR(num_sge=5, sg=[client.sge(0, 1)] * 5)
    refused(lambda: client.qp.post_recv(receive), errno.EINVAL)


def test_inline_data_needs_no_key_and_is_read_at_once(device: str) -> None:
    client, server = connected(device)
    server.qp.post_recv(server.recv_wr(0, 64))
    client.mr.write("before", 6)
    sge = client.sge(0, 6)
    sge.lkey = 0
    client.qp.post_send(
        SendWR(num_sge=1, sg=[sge], send_flags=e.IBV_SEND_INLINE | e.IBV_SEND_SIGNALED)
    )
    client.mr.write("after!", 6)
    poll(server.cq)
    assert server.mr.read(6, 0) == b"before"


def test_several_elements_make_one_message(device: str) -> None:
    client, server = connected(device)
    client.mr.write("abcdefgh", 8)
    elements = [server.sge(0, 3), server.sge(10, 0), server.sge(20, 30)]
    server.qp.post_recv(RecvWR(num_sge=3, sg=elements))
    client.qp.post_send(SendWR(num_sge=2, sg=[client.sge(4, 4), client.sge(0, 4)]))
    assert poll(server.cq)[0].byte_len == 8
    assert server.mr.read(3, 0) + server.mr.read(5, 20) == b"efghabcd"


def test_nothing_is_posted_in_reset(device: str) -> None:
    client, _ = connected(device)
    client.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), STATE)
    refused(lambda: client.qp.post_recv(client.recv_wr(0, 64)), errno.EINVAL)
    refused(lambda: client.qp.post_send(client.send_wr()), errno.EINVAL)


def test_nothing_is_sent_in_init(device: str) -> None:
    endpoint = Endpoint(device)
    endpoint.qp.post_recv(endpoint.recv_wr(0, 64))
    refused(lambda: endpoint.qp.post_send(endpoint.send_wr()), errno.EINVAL)


def test_what_is_posted_in_error_is_flushed(device: str) -> None:
    client, _ = connected(device)
    client.qp.post_recv(client.recv_wr(0, 64, wr_id=1))
    to_error(client)
    client.qp.post_recv(client.recv_wr(0, 64, wr_id=2))
    client.qp.post_send(client.send_wr(wr_id=3))
    assert [(wc.wr_id, wc.status) for wc in poll(client.cq, 3)] == [
        (1, FLUSHED),
        (2, FLUSHED),
        (3, FLUSHED),
    ]


def test_remote_memory_is_written_read_and_counted(device: str) -> None:
    client, server = connected(device)
    client.mr.write("abcdefgh", 8)
    write = client.send_wr(e.IBV_WR_RDMA_WRITE, 8)
    write.set_wr_rdma(server.mr.rkey, server.mr.buf + 16)
    read = SendWR(opcode=e.IBV_WR_RDMA_READ, num_sge=1, sg=[client.sge(32, 8)])
    read.set_wr_rdma(server.mr.rkey, server.mr.buf + 16)
    add = SendWR(opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD, num_sge=1, sg=[client.sge(64, 8)])
    add.set_wr_atomic(server.mr.rkey, server.mr.buf, (1 << 64) - 1)
    swap = SendWR(opcode=e.IBV_WR_ATOMIC_CMP_AND_SWP, num_sge=1, sg=[client.sge(72, 8)])
    swap.set_wr_atomic(server.mr.rkey, server.mr.buf, (1 << 64) - 1, 7)
    write.next_wr, read.next_wr, add.next_wr = read, add, swap
    client.qp.post_send(write)
    assert [wc.status for wc in poll(client.cq, 4)] == [SUCCESS] * 4
    assert server.mr.read(8, 16) == client.mr.read(8, 32) == b"abcdefgh"
    assert client.mr.read(8, 64) == bytes(8)
    assert client.mr.read(8, 72) == b"\xff" * 8
    assert int.from_bytes(server.mr.read(8, 0), "little") == 7


def test_a_failed_request_ends_the_connection_with_its_status(device: str) -> None:
    client, server = connected(device)
    write = client.send_wr(e.IBV_WR_RDMA_WRITE, 8, send_flags=0)
    write.set_wr_rdma(server.mr.rkey + 1, server.mr.buf)
    client.qp.post_send(write)
    assert poll(client.cq)[0].status == e.IBV_WC_REM_ACCESS_ERR
    assert client.qp.qp_state == e.IBV_QPS_ERR
    assert async_event(server.context) == e.IBV_EVENT_QP_ACCESS_ERR


def test_a_closed_queue_pair_takes_its_events_with_it(device: str) -> None:
    client, server = connected(device)
    write = client.send_wr(e.IBV_WR_RDMA_WRITE, 8)
    write.set_wr_rdma(server.mr.rkey + 1, server.mr.buf)
    client.qp.post_send(write)
    poll(client.cq)
    assert is_readable(server.context.async_events.fd, PATIENCE_S)
    server.qp.close()
    assert not is_readable(server.context.async_events.fd)


# Windows


def window_write(client: Endpoint, server: Endpoint, rkey: int) -> int:
    write = client.send_wr(e.IBV_WR_RDMA_WRITE, 8)
    write.set_wr_rdma(rkey, server.mr.buf)
    client.qp.post_send(write)
    return poll(client.cq)[0].status


def test_a_type_1_window_has_a_new_key_with_every_bind(device: str) -> None:
    client, server = connected(device)
    window = MW(server.pd, e.IBV_MW_TYPE_1)
    info = MWBindInfo(server.mr, server.mr.buf, 8, e.IBV_ACCESS_REMOTE_WRITE)
    before = window.rkey
    server.qp.bind_mw(window, MWBind(info, e.IBV_SEND_SIGNALED, wr_id=5))
    (bound,) = poll(server.cq)
    assert (bound.wr_id, bound.opcode, bound.status) == (5, e.IBV_WC_BIND_MW, SUCCESS)
    assert window.rkey != before
    assert window.rkey >> 8 == before >> 8
    assert window_write(client, server, window.rkey) == SUCCESS
    assert window_write(client, server, before) == e.IBV_WC_REM_ACCESS_ERR


def test_a_type_2_window_is_bound_and_closed_by_work_requests(device: str) -> None:
    client, server = connected(device)
    window = MW(server.pd, e.IBV_MW_TYPE_2)
    info = MWBindInfo(server.mr, server.mr.buf, 8, e.IBV_ACCESS_REMOTE_WRITE)
    bind = SendWR(opcode=e.IBV_WR_BIND_MW)
    bind.set_bind_wr(window, info)
    server.qp.post_send(bind)
    assert poll(server.cq)[0].status == SUCCESS
    assert window_write(client, server, bind.rkey) == SUCCESS
    server.qp.post_recv(server.recv_wr(0, 64))
    invalidate = SendWR(opcode=e.IBV_WR_SEND_WITH_INV, imm_data=bind.rkey)
    client.qp.post_send(invalidate)
    poll(client.cq)
    (received,) = poll(server.cq)
    assert (received.wc_flags, received.imm_data) == (e.IBV_WC_WITH_INV, bind.rkey)
    assert window_write(client, server, bind.rkey) == e.IBV_WC_REM_ACCESS_ERR


def test_windows_are_bound_by_the_call_for_their_type(device: str) -> None:
    client, _ = connected(device)
    first, second = MW(client.pd, e.IBV_MW_TYPE_1), MW(client.pd, e.IBV_MW_TYPE_2)
    info = MWBindInfo(client.mr, client.mr.buf, 8, e.IBV_ACCESS_REMOTE_WRITE)
    refused(lambda: client.qp.bind_mw(second, MWBind(info, 0)), errno.EINVAL)
    bind = SendWR(opcode=e.IBV_WR_BIND_MW)
    refused(lambda: client.qp.post_send(bind), errno.EINVAL)
    bind.set_bind_wr(first, info)
    refused(lambda: client.qp.post_send(bind), errno.EINVAL)
    assert client.cq.poll() == (0, [])


def test_errors_are_pyverbs_errors_with_the_engines_reason_behind(device: str) -> None:
    client, _ = connected(device)
    with pytest.raises(PyverbsError, match="Invalid argument") as caught:
        client.qp.modify(QPAttr(qp_state=e.IBV_QPS_RTR), STATE)
    assert "RTS" in str(caught.value.__cause__)
