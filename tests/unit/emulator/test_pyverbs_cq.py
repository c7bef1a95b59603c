"""Completion queues and channels: limits, events by a real descriptor, both ways to poll."""

from __future__ import annotations

import errno
import gc
import os
import threading
import time
from collections.abc import Iterator

import pytest

from emulator.pyverbs import devices
from emulator.pyverbs import libibverbs_enums as e
from emulator.pyverbs.cq import CQ, CQEX, WC, CompChannel, CqInitAttrEx, PollCqAttr
from emulator.pyverbs.device import Context
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from tests.support.pyverbs_endpoints import (
    PATIENCE_S,
    SUCCESS,
    async_event,
    connected,
    is_readable,
    poll,
    wait_until,
)

TIMES = e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK


@pytest.fixture
def device() -> Iterator[str]:
    with devices(1) as found:
        yield found[0].name


@pytest.fixture
def context(device: str) -> Context:
    return Context(name=device)


@pytest.mark.parametrize("cqe", [0, -1, 1 << 30])
def test_a_depth_the_device_cannot_have_is_refused(context: Context, cqe: int) -> None:
    with pytest.raises(PyverbsRDMAError) as caught:
        CQ(context, cqe)
    assert caught.value.error_code == errno.EINVAL


def test_the_greatest_depth_is_had_and_one_more_is_not(context: Context) -> None:
    most = context.query_device().max_cqe
    assert CQ(context, most).cqe == most
    for attempt in (lambda: CQ(context, most + 1), lambda: CQEX(context, CqInitAttrEx(most + 1))):
        with pytest.raises(PyverbsRDMAError) as caught:
            attempt()
        assert caught.value.error_code == errno.EINVAL


@pytest.mark.parametrize("vector", [-1, 1 << 10])
def test_a_vector_the_device_does_not_have_is_refused(context: Context, vector: int) -> None:
    with pytest.raises(PyverbsRDMAError) as caught:
        CQ(context, 10, None, None, vector)
    assert caught.value.error_code == errno.EINVAL


def test_a_fractional_depth_is_taken_as_the_integer_below(context: Context) -> None:
    assert CQ(context, 7.5).cqe == 7  # type: ignore[arg-type]


def test_closing_twice_and_using_a_closed_queue(context: Context) -> None:
    cq = CQ(context, 1)
    cq.close()
    cq.close()
    for use in (cq.poll, cq.req_notify, lambda: cq.resize(4)):
        with pytest.raises(PyverbsUserError, match="closed"):
            use()


def test_a_queue_that_nobody_holds_is_freed(context: Context) -> None:
    queues = [CQ(context, 1) for _ in range(3)]
    handles = {cq.handle for cq in queues}
    del queues
    gc.collect()
    assert {CQ(context, 1).handle for _ in range(3)} & handles


def test_an_empty_queue_gives_nothing(context: Context) -> None:
    cq = CQ(context, 4)
    assert cq.poll() == (0, [])
    assert cq.poll(0) == (0, [])


def test_completions_of_a_message(device: str) -> None:
    client, server = connected(device)
    server.qp.post_recv(server.recv_wr(0, 64, wr_id=(1 << 64) - 1))
    client.qp.post_send(
        client.send_wr(e.IBV_WR_SEND_WITH_IMM, 20, wr_id=1 << 63, imm_data=0x04030201)
    )
    (sent,), (received,) = poll(client.cq), poll(server.cq)
    assert (sent.wr_id, sent.status, sent.opcode) == (1 << 63, SUCCESS, e.IBV_WC_SEND)
    assert sent.qp_num == client.qp.qp_num
    assert (received.wr_id, received.status) == ((1 << 64) - 1, SUCCESS)
    assert (received.opcode, received.byte_len) == (e.IBV_WC_RECV, 20)
    assert received.imm_data == 0x04030201
    assert received.wc_flags == e.IBV_WC_WITH_IMM
    assert (received.qp_num, received.src_qp) == (server.qp.qp_num, client.qp.qp_num)


def test_poll_gives_no_more_than_asked_for_in_order(device: str) -> None:
    client, server = connected(device)
    for wr_id in range(5):
        server.qp.post_recv(server.recv_wr(0, 64))
        client.qp.post_send(client.send_wr(wr_id=wr_id))
    wait_until(lambda: client.qp.query(0)[0].sq_psn == 3)  # FFFFFE + 5
    poll(server.cq, 5)
    count, first = client.cq.poll(2)
    assert count == len(first) == 2
    rest = poll(client.cq, 3)
    assert [wc.wr_id for wc in [*first, *rest]] == list(range(5))


def test_resizing_keeps_what_waits_and_refuses_to_lose_it(device: str) -> None:
    client, server = connected(device)
    for wr_id in range(4):
        server.qp.post_recv(server.recv_wr(0, 64, wr_id=wr_id))
        client.qp.post_send(client.send_wr())
    poll(client.cq, 4)
    (first,) = poll(server.cq)
    with pytest.raises(PyverbsRDMAError) as caught:
        server.cq.resize(2)
    assert caught.value.error_code == errno.EINVAL
    server.cq.resize(3)
    assert server.cq.cqe == 3
    server.cq.resize(40)
    assert [wc.wr_id for wc in [first, *poll(server.cq, 3)]] == [0, 1, 2, 3]
    with pytest.raises(PyverbsRDMAError):
        server.cq.resize(0)


def test_an_overrun_queue_says_so(device: str) -> None:
    client, server = connected(device)
    client.cq.resize(1)
    for _ in range(2):
        server.qp.post_recv(server.recv_wr(0, 64))
        client.qp.post_send(client.send_wr())
    poll(server.cq, 2)
    assert async_event(client.context) == e.IBV_EVENT_CQ_ERR
    assert async_event(client.context) == e.IBV_EVENT_QP_FATAL
    assert client.qp.qp_state == e.IBV_QPS_ERR
    with pytest.raises(PyverbsRDMAError):
        client.cq.poll()


def test_the_channel_tells_once_for_each_request(device: str) -> None:
    client, server = connected(device, with_channel=True)
    channel = server.channel
    assert channel is not None
    assert not is_readable(channel.fd)
    server.cq.req_notify()
    for _ in range(3):
        server.qp.post_recv(server.recv_wr(0, 64))
        client.qp.post_send(client.send_wr())
    assert is_readable(channel.fd, PATIENCE_S)
    channel.get_cq_event(server.cq)
    poll(server.cq, 3)
    assert not is_readable(channel.fd)
    server.cq.ack_events(1)
    assert server.cq.num_events == 0


def test_an_event_wakes_one_who_waits_in_the_channel(device: str) -> None:
    client, server = connected(device, with_channel=True)
    assert server.channel is not None
    server.cq.req_notify()
    waiter = threading.Thread(target=server.channel.get_cq_event, args=(server.cq,), daemon=True)
    waiter.start()
    server.qp.post_recv(server.recv_wr(0, 64))
    client.qp.post_send(client.send_wr())
    waiter.join(PATIENCE_S)
    assert not waiter.is_alive()
    assert server.cq.num_events == 1
    assert [wc.status for wc in poll(server.cq)] == [SUCCESS]


def test_only_solicited_messages_tell_where_that_was_asked(device: str) -> None:
    client, server = connected(device, with_channel=True)
    channel = server.channel
    assert channel is not None
    server.cq.req_notify(solicited_only=True)
    for _ in range(2):
        server.qp.post_recv(server.recv_wr(0, 64))
    client.qp.post_send(client.send_wr())
    poll(server.cq)
    assert not is_readable(channel.fd)
    client.qp.post_send(client.send_wr(send_flags=e.IBV_SEND_SOLICITED))
    assert is_readable(channel.fd, PATIENCE_S)


def test_a_channel_can_be_made_non_blocking(context: Context) -> None:
    channel = CompChannel(context)
    cq = CQ(context, 4, None, channel)
    os.set_blocking(channel.fd, False)
    with pytest.raises(PyverbsRDMAError) as caught:
        channel.get_cq_event(cq)
    assert caught.value.error_code == errno.EAGAIN


def test_an_event_of_another_queue_is_an_error(device: str) -> None:
    client, server = connected(device, with_channel=True)
    assert server.channel is not None
    other = CQ(server.context, 4, None, server.channel)
    server.cq.req_notify()
    server.qp.post_recv(server.recv_wr(0, 64))
    client.qp.post_send(client.send_wr())
    with pytest.raises(PyverbsRDMAError):
        server.channel.get_cq_event(other)
    assert other.num_events == 0


def test_a_closed_queue_takes_its_events_with_it(device: str) -> None:
    client, server = connected(device, with_channel=True)
    channel = server.channel
    assert channel is not None
    server.cq.req_notify()
    server.qp.post_recv(server.recv_wr(0, 64))
    client.qp.post_send(client.send_wr())
    assert is_readable(channel.fd, PATIENCE_S)
    server.cq.close()
    assert not is_readable(channel.fd)


def test_closing_a_channel_closes_its_queues(context: Context) -> None:
    channel = CompChannel(context)
    cq = CQ(context, 4, None, channel)
    channel.close()
    assert cq.handle == -1
    with pytest.raises(PyverbsUserError):
        print(channel.fd)


def test_extended_polling_reads_field_by_field(device: str) -> None:
    client, server = connected(device, wc_flags=e.IBV_WC_STANDARD_FLAGS)
    for number in range(2):
        server.qp.post_recv(server.recv_wr(0, 64, wr_id=number))
        client.qp.post_send(client.send_wr(e.IBV_WR_SEND_WITH_IMM, 10 + number, imm_data=number))
    cq = server.cq
    wait_until(lambda: cq.start_poll(PollCqAttr()) == 0)
    assert (cq.wr_id, cq.status, cq.read_byte_len(), cq.read_imm_data()) == (0, SUCCESS, 10, 0)
    wait_until(lambda: cq.poll_next() == 0)
    assert (cq.wr_id, cq.status, cq.read_byte_len(), cq.read_imm_data()) == (1, SUCCESS, 11, 1)
    assert cq.read_opcode() == e.IBV_WC_RECV
    assert cq.read_wc_flags() == e.IBV_WC_WITH_IMM
    assert (cq.read_qp_num(), cq.read_src_qp()) == (server.qp.qp_num, client.qp.qp_num)
    assert (cq.read_slid(), cq.read_sl(), cq.read_dlid_path_bits()) == (0, 0, 0)
    assert cq.read_vendor_err() == 0
    assert cq.poll_next() == errno.ENOENT
    cq.end_poll()
    with pytest.raises(PyverbsUserError, match="start_poll"):
        cq.read_opcode()


def test_what_was_not_asked_for_cannot_be_read(device: str) -> None:
    client, server = connected(device, wc_flags=e.IBV_WC_EX_WITH_BYTE_LEN)
    server.qp.post_recv(server.recv_wr(0, 64))
    client.qp.post_send(client.send_wr(length=5))
    wait_until(lambda: server.cq.start_poll(None) == 0)
    assert server.cq.read_byte_len() == 5
    for read in (server.cq.read_timestamp, server.cq.read_imm_data, server.cq.read_cvlan):
        with pytest.raises(PyverbsUserError, match="IBV_WC_EX_WITH"):
            read()


def test_timestamps_are_of_the_completion_not_of_the_poll(device: str) -> None:
    client, server = connected(device, wc_flags=e.IBV_WC_STANDARD_FLAGS | TIMES)
    before, before_wall = time.monotonic_ns(), time.time_ns()
    server.qp.post_recv(server.recv_wr(0, 64))
    client.qp.post_send(client.send_wr())
    wait_until(lambda: client.cq.start_poll(None) == 0)
    # The acknowledgement is here, so the message was complete by now.
    after = time.monotonic_ns()
    assert server.cq.start_poll(None) == 0
    assert before <= server.cq.read_timestamp() <= after
    wall = server.cq.read_completion_wallclock_ns()
    assert abs(wall - before_wall) < PATIENCE_S * 1e9


@pytest.mark.parametrize(
    "field",
    [e.IBV_WC_EX_WITH_CVLAN, e.IBV_WC_EX_WITH_FLOW_TAG, e.IBV_WC_EX_WITH_TM_INFO],
)
def test_fields_that_no_emulated_nic_fills_are_refused(context: Context, field: int) -> None:
    with pytest.raises(PyverbsRDMAError) as caught:
        CQEX(context, CqInitAttrEx(10, wc_flags=field))
    assert caught.value.error_code == errno.EOPNOTSUPP


def test_creation_flags_count_only_where_the_mask_names_them(context: Context) -> None:
    flags = e.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN
    assert CQEX(context, CqInitAttrEx(10, flags=flags)).handle >= 0
    with pytest.raises(PyverbsRDMAError) as caught:
        CQEX(context, CqInitAttrEx(10, flags=flags, comp_mask=e.IBV_CQ_INIT_ATTR_MASK_FLAGS))
    assert caught.value.error_code == errno.EOPNOTSUPP


def test_an_unknown_poll_attribute_is_refused(context: Context) -> None:
    attr = PollCqAttr()
    attr.comp_mask = 1
    assert CQEX(context, None).start_poll(attr) == errno.EINVAL


def test_text_for_people(context: Context) -> None:
    text = str(WC(wr_id=5, status=e.IBV_WC_RNR_RETRY_EXC_ERR, opcode=e.IBV_WC_RECV))
    assert "rnr retry exc err" in text
    assert "recv" in text
    assert "unknown status 99" in str(WC(status=99, opcode=99))
    assert "IBV_WC_EX_WITH_IMM" in str(CqInitAttrEx(wc_flags=e.IBV_WC_EX_WITH_IMM))
    assert "10" in str(CQ(context, 10))
