"""Queue pairs with work requests built call by call: each operation, batches, errors."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Iterator

import pytest

from emulator.pyverbs import devices
from emulator.pyverbs import libibverbs_enums as e
from emulator.pyverbs.base import inc_rkey
from emulator.pyverbs.mr import MR, MW, MWBindInfo
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from emulator.pyverbs.qp import DataBuffer, QPAttr, QPCap, QPEx
from emulator.pyverbs.wr import SendWR
from tests.support.pyverbs_endpoints import (
    ALL_SEND_OPS,
    FLUSHED,
    GRH_BYTES,
    QKEY,
    SUCCESS,
    UD,
    Endpoint,
    connected,
    poll,
)

SENDS_ONLY = e.IBV_QP_EX_WITH_SEND


@pytest.fixture
def device() -> Iterator[str]:
    with devices(1) as found:
        yield found[0].name


@pytest.fixture
def pair(device: str) -> tuple[Endpoint, Endpoint]:
    return connected(device, send_ops=ALL_SEND_OPS)


def refused(action: Callable[[], object], code: int) -> None:
    with pytest.raises(PyverbsRDMAError) as caught:
        action()
    assert caught.value.error_code == code


def begin(qp: QPEx, wr_id: int = 1) -> None:
    qp.wr_start()
    qp.wr_id = wr_id
    qp.wr_flags = e.IBV_SEND_SIGNALED


def test_sends_with_everything_that_goes_along(pair: tuple[Endpoint, Endpoint]) -> None:
    client, server = pair
    client.mr.write("abcdef", 6)
    for wr_id in range(2):
        server.qp.post_recv(server.recv_wr(100 * wr_id, 64))
    begin(client.qp, wr_id=5)
    client.qp.wr_send()
    client.qp.wr_set_sge(client.sge(0, 3))
    client.qp.wr_id = 6
    client.qp.wr_send_imm(0x01020304)
    client.qp.wr_set_sge_list(2, [client.sge(3, 3), client.sge(0, 3)])
    client.qp.wr_complete()
    assert [(wc.wr_id, wc.status) for wc in poll(client.cq, 2)] == [(5, SUCCESS), (6, SUCCESS)]
    first, second = poll(server.cq, 2)
    assert (first.wc_flags, second.wc_flags) == (0, e.IBV_WC_WITH_IMM)
    assert second.imm_data.to_bytes(4, "little") == b"\x01\x02\x03\x04"
    assert server.mr.read(3, 0) == b"abc"
    assert server.mr.read(6, 100) == b"defabc"


def test_remote_operations(pair: tuple[Endpoint, Endpoint]) -> None:
    client, server = pair
    client.mr.write("abcdefgh", 8)
    server.qp.post_recv(server.recv_wr(0, 8))
    key, addr = server.mr.rkey, server.mr.buf
    qp = client.qp
    begin(qp)
    qp.wr_rdma_write(key, addr + 16)
    qp.wr_set_sge(client.sge(0, 8))
    qp.wr_rdma_write_imm(key, addr + 24, 9)
    qp.wr_set_sge(client.sge(0, 4))
    qp.wr_rdma_read(key, addr + 16)
    qp.wr_set_sge(client.sge(32, 12))
    qp.wr_atomic_fetch_add(key, addr, (1 << 64) - 1)
    qp.wr_set_sge(client.sge(64, 8))
    qp.wr_atomic_cmp_swp(key, addr, (1 << 64) - 1, 5)
    qp.wr_set_sge(client.sge(72, 8))
    qp.wr_complete()
    done = poll(client.cq, 5)
    assert [wc.status for wc in done] == [SUCCESS] * 5
    assert [wc.opcode for wc in done] == [
        e.IBV_WC_RDMA_WRITE,
        e.IBV_WC_RDMA_WRITE,
        e.IBV_WC_RDMA_READ,
        e.IBV_WC_FETCH_ADD,
        e.IBV_WC_COMP_SWAP,
    ]
    assert client.mr.read(12, 32) == b"abcdefghabcd"
    assert client.mr.read(8, 64) == bytes(8)
    assert client.mr.read(8, 72) == b"\xff" * 8
    assert int.from_bytes(server.mr.read(8, 0), "little") == 5
    assert poll(server.cq)[0].opcode == e.IBV_WC_RECV_RDMA_WITH_IMM


def test_nothing_to_send_is_a_message_too(pair: tuple[Endpoint, Endpoint]) -> None:
    client, server = pair
    server.qp.post_recv(server.recv_wr(0, 8))
    begin(client.qp)
    client.qp.wr_send()
    client.qp.wr_complete()
    assert poll(client.cq)[0].status == SUCCESS
    assert poll(server.cq)[0].byte_len == 0


def test_inline_data_is_copied_when_it_is_named(pair: tuple[Endpoint, Endpoint]) -> None:
    client, server = pair
    for offset in (0, 100):
        server.qp.post_recv(server.recv_wr(offset, 64))
    # Of no region: inline data needs no key.
    words = ctypes.create_string_buffer(b"before")
    addr = ctypes.addressof(words)
    begin(client.qp)
    client.qp.wr_send()
    client.qp.wr_set_inline_data(addr, 6)
    client.qp.wr_send()
    buffers = [DataBuffer(addr + 3, 3), DataBuffer(addr, 2), DataBuffer(addr, 6)]
    client.qp.wr_set_inline_data_list(2, buffers)
    words.value = b"after!"
    client.qp.wr_complete()
    assert [wc.status for wc in poll(client.cq, 2)] == [SUCCESS] * 2
    poll(server.cq, 2)
    assert server.mr.read(6, 0) == b"before"
    assert server.mr.read(5, 100) == b"orebe"


def test_datagrams_go_where_the_address_says(device: str) -> None:
    client, server = connected(device, UD, send_ops=SENDS_ONLY)
    client.mr.write("abc", 3)
    server.qp.post_recv(server.recv_wr(0, 64))
    begin(client.qp)
    client.qp.wr_send()
    client.qp.wr_set_ud_addr(client.ah, server.qp.qp_num, QKEY)
    client.qp.wr_set_sge(client.sge(0, 3))
    client.qp.wr_complete()
    assert poll(server.cq)[0].src_qp == client.qp.qp_num
    assert server.mr.read(3, GRH_BYTES) == b"abc"
    begin(client.qp)
    client.qp.wr_send()
    client.qp.wr_set_sge(client.sge(0, 3))
    refused(client.qp.wr_complete, errno.EINVAL)


def test_windows_are_bound_and_closed(pair: tuple[Endpoint, Endpoint]) -> None:
    client, server = pair
    window = MW(server.pd, e.IBV_MW_TYPE_2)
    info = MWBindInfo(server.mr, server.mr.buf, 8, e.IBV_ACCESS_REMOTE_WRITE)
    keys = [inc_rkey(window.rkey), inc_rkey(inc_rkey(window.rkey))]
    for key in keys:
        begin(server.qp)
        server.qp.wr_bind_mw(window, key, info)
        server.qp.wr_complete()
        assert poll(server.cq)[0].status == SUCCESS
        begin(client.qp)
        client.qp.wr_rdma_write(key, server.mr.buf)
        client.qp.wr_set_sge(client.sge(0, 8))
        client.qp.wr_complete()
        assert poll(client.cq)[0].status == SUCCESS
        window.rkey = key
        begin(server.qp)
        server.qp.wr_local_inv(key)
        server.qp.wr_complete()
        assert poll(server.cq)[0].opcode == e.IBV_WC_LOCAL_INV
    begin(client.qp)
    client.qp.wr_rdma_write(keys[-1], server.mr.buf)
    client.qp.wr_set_sge(client.sge(0, 8))
    client.qp.wr_complete()
    assert poll(client.cq)[0].status == e.IBV_WC_REM_ACCESS_ERR


def test_a_message_closes_the_peers_window(pair: tuple[Endpoint, Endpoint]) -> None:
    client, server = pair
    window = MW(server.pd, e.IBV_MW_TYPE_2)
    key = inc_rkey(window.rkey)
    info = MWBindInfo(server.mr, server.mr.buf, 8, e.IBV_ACCESS_REMOTE_WRITE)
    begin(server.qp)
    server.qp.wr_bind_mw(window, key, info)
    server.qp.wr_complete()
    poll(server.cq)
    server.qp.post_recv(server.recv_wr(0, 8))
    begin(client.qp)
    client.qp.wr_send_inv(key)
    client.qp.wr_complete()
    assert poll(client.cq)[0].status == SUCCESS
    (received,) = poll(server.cq)
    assert (received.wc_flags, received.imm_data) == (e.IBV_WC_WITH_INV, key)


def test_windows_of_a_queue_pair_are_closed_with_it(pair: tuple[Endpoint, Endpoint]) -> None:
    _, server = pair
    window = MW(server.pd, e.IBV_MW_TYPE_2)
    info = MWBindInfo(server.mr, server.mr.buf, 8, e.IBV_ACCESS_REMOTE_WRITE)
    begin(server.qp)
    server.qp.wr_bind_mw(window, inc_rkey(window.rkey), info)
    server.qp.wr_complete()
    port = server.context.port
    server.qp.close()
    with port.nic.engine() as engine:
        assert engine.regions.table[window.handle >> 8].key == 0


def test_an_aborted_batch_leaves_nothing(pair: tuple[Endpoint, Endpoint]) -> None:
    client, server = pair
    server.qp.post_recv(server.recv_wr(0, 8, wr_id=1))
    begin(client.qp, wr_id=7)
    client.qp.wr_send()
    client.qp.wr_abort()
    begin(client.qp, wr_id=8)
    client.qp.wr_send()
    client.qp.wr_complete()
    assert [wc.wr_id for wc in poll(client.cq)] == [8]
    assert client.cq.poll() == (0, [])


def test_an_empty_batch_is_nothing(pair: tuple[Endpoint, Endpoint]) -> None:
    client, _ = pair
    client.qp.wr_start()
    client.qp.wr_complete()
    assert client.cq.poll() == (0, [])


def test_one_bad_request_and_none_of_the_batch_is_posted(device: str) -> None:
    client, server = connected(device, send_ops=SENDS_ONLY)
    server.qp.post_recv(server.recv_wr(0, 8))
    for code, spoil in (
        (errno.EOPNOTSUPP, lambda qp: qp.wr_rdma_read(1, 2)),
        (errno.EOPNOTSUPP, lambda qp: qp.wr_atomic_write(1, 2, b"12345678")),
        (errno.EOPNOTSUPP, lambda qp: qp.wr_flush(1, 2, 8, 1, 0)),
        (errno.EOPNOTSUPP, lambda qp: qp.wr_send_tso(0, 0, 0)),
        (errno.EINVAL, lambda qp: qp.wr_set_sge_list(5, [client.sge(0, 1)] * 5)),
        (errno.EINVAL, lambda qp: qp.wr_set_inline_data(client.mr.buf, 65)),
    ):
        begin(client.qp)
        client.qp.wr_send()
        spoil(client.qp)
        refused(client.qp.wr_complete, code)
    begin(client.qp, wr_id=9)
    client.qp.wr_send()
    client.qp.wr_complete()
    assert [wc.wr_id for wc in poll(client.cq)] == [9]


def test_a_batch_that_does_not_fit_is_refused_whole(device: str) -> None:
    cap = QPCap(max_send_wr=2, max_recv_wr=4)
    client, server = connected(device, send_ops=SENDS_ONLY, cap=cap)
    for _ in range(3):
        server.qp.post_recv(server.recv_wr(0, 8))
    begin(client.qp)
    for _ in range(3):
        client.qp.wr_send()
    refused(client.qp.wr_complete, errno.ENOMEM)
    assert client.cq.poll() == (0, [])


@pytest.mark.parametrize("state", [e.IBV_QPS_RESET, e.IBV_QPS_ERR])
def test_completing_a_batch_in_reset_or_error(device: str, state: int) -> None:
    client, _ = connected(device, send_ops=SENDS_ONLY)
    client.qp.modify(QPAttr(qp_state=state), e.IBV_QP_STATE)
    begin(client.qp, wr_id=3)
    client.qp.wr_send()
    if state == e.IBV_QPS_RESET:
        refused(client.qp.wr_complete, errno.EINVAL)
        return
    client.qp.wr_complete()
    assert [(wc.wr_id, wc.status) for wc in poll(client.cq)] == [(3, FLUSHED)]


def test_calls_out_of_order_are_the_callers_mistake(pair: tuple[Endpoint, Endpoint]) -> None:
    client, _ = pair
    for call in (client.qp.wr_send, client.qp.wr_complete, lambda: client.qp.wr_set_sge(None)):
        with pytest.raises(PyverbsUserError, match="wr_start"):
            call()
    client.qp.wr_start()
    with pytest.raises(PyverbsUserError, match="already"):
        client.qp.wr_start()
    with pytest.raises(PyverbsUserError, match="begun"):
        client.qp.wr_set_sge(client.sge(0, 1))


def test_without_send_operations_there_are_no_batches(device: str) -> None:
    endpoint = Endpoint(device)
    attr = endpoint.qp.query(0)[1]
    qp = QPEx(endpoint.pd, attr)
    with pytest.raises(PyverbsUserError, match="send_ops_flags"):
        qp.wr_start()


def placing(device: str) -> tuple[Endpoint, Endpoint, MR]:
    """Two ends, and a region of the second's that may be written and flushed."""
    client, server = connected(device, send_ops=ALL_SEND_OPS)
    access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_FLUSH_GLOBAL
    return client, server, MR(server.pd, 64, access)


def test_an_atomic_write_carries_its_bytes_in_the_request(device: str) -> None:
    client, _, target = placing(device)
    value = bytearray(b"8 bytes, and more")
    begin(client.qp, wr_id=3)
    client.qp.wr_atomic_write(target.rkey, target.buf + 8, bytes(value))
    client.qp.wr_complete()
    (wc,) = poll(client.cq)
    assert (wc.wr_id, wc.status, wc.opcode) == (3, SUCCESS, e.IBV_WC_ATOMIC_WRITE)
    assert target.read(24, 0) == bytes(8) + b"8 bytes," + bytes(8)


def test_an_atomic_write_needs_no_room_for_inline_data(device: str) -> None:
    cap = QPCap(max_send_wr=4, max_recv_wr=4, max_inline_data=0)
    client, server = connected(device, send_ops=e.IBV_QP_EX_WITH_ATOMIC_WRITE, cap=cap)
    begin(client.qp)
    client.qp.wr_atomic_write(server.mr.rkey, server.mr.buf, b"abcdefgh")
    client.qp.wr_complete()
    assert poll(client.cq)[0].status == SUCCESS
    assert server.mr.read(8, 0) == b"abcdefgh"


def test_an_atomic_write_of_fewer_bytes_is_the_callers_mistake(device: str) -> None:
    client, _, target = placing(device)
    begin(client.qp)
    with pytest.raises(PyverbsUserError, match="8 bytes"):
        client.qp.wr_atomic_write(target.rkey, target.buf, b"seven b")


@pytest.mark.parametrize("level", [e.IBV_FLUSH_RANGE, e.IBV_FLUSH_MR])
def test_a_flush_completes(device: str, level: int) -> None:
    client, _, target = placing(device)
    begin(client.qp, wr_id=4)
    length = 64 if level == e.IBV_FLUSH_RANGE else 1 << 40
    client.qp.wr_flush(target.rkey, target.buf, length, e.IBV_FLUSH_GLOBAL, level)
    client.qp.wr_complete()
    (wc,) = poll(client.cq)
    assert (wc.wr_id, wc.status, wc.opcode) == (4, SUCCESS, e.IBV_WC_FLUSH)


def test_a_flush_for_persistence_is_refused_by_the_peer(device: str) -> None:
    client, _, target = placing(device)
    begin(client.qp)
    client.qp.wr_flush(target.rkey, target.buf, 8, e.IBV_FLUSH_PERSISTENT, e.IBV_FLUSH_RANGE)
    client.qp.wr_complete()
    assert poll(client.cq)[0].status == e.IBV_WC_REM_ACCESS_ERR


def test_no_region_is_registered_for_persistence(device: str) -> None:
    endpoint = Endpoint(device)
    access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_FLUSH_PERSISTENT
    refused(lambda: MR(endpoint.pd, 64, access), errno.EOPNOTSUPP)


def test_a_flush_that_no_header_can_say_is_the_callers_mistake(device: str) -> None:
    client, _, target = placing(device)
    begin(client.qp)
    with pytest.raises(PyverbsUserError, match="FETH"):
        client.qp.wr_flush(target.rkey, target.buf, 8, 16, 0)


def test_a_list_of_work_requests_cannot_ask_for_a_flush(device: str) -> None:
    client, _, _ = placing(device)
    wr = SendWR(opcode=e.IBV_WR_FLUSH, num_sge=1, sg=[client.sge(0, 0)])
    refused(lambda: client.qp.post_send(wr), errno.EINVAL)


def test_operations_that_are_not_emulated_are_refused(device: str) -> None:
    ops = e.IBV_QP_EX_WITH_TSO | SENDS_ONLY
    refused(lambda: Endpoint(device, send_ops=ops), errno.EOPNOTSUPP)


def test_a_datagram_queue_pair_has_no_remote_operations(device: str) -> None:
    refused(lambda: Endpoint(device, UD, send_ops=e.IBV_QP_EX_WITH_RDMA_WRITE), errno.EOPNOTSUPP)
