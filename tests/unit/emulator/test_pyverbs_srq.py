"""Shared receive queues: limits, resizing, posting, and the event that tells they run low."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

from emulator.pyverbs import devices
from emulator.pyverbs import libibverbs_enums as e
from emulator.pyverbs.cq import CQ
from emulator.pyverbs.device import Context
from emulator.pyverbs.mr import MR
from emulator.pyverbs.pd import PD
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from emulator.pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from emulator.pyverbs.srq import SRQ, OpsWr, SrqAttr, SrqInitAttr, SrqInitAttrEx
from emulator.pyverbs.wr import SGE, RecvWR
from tests.support.pyverbs_endpoints import FLUSHED, RC, Endpoint, async_event, connected, poll

LIMIT, MAX_WR = e.IBV_SRQ_LIMIT, e.IBV_SRQ_MAX_WR


@pytest.fixture
def device() -> Iterator[str]:
    with devices(1) as found:
        yield found[0].name


@pytest.fixture
def pd(device: str) -> PD:
    return PD(Context(name=device))


def refused(action: Callable[[], object], code: int) -> None:
    with pytest.raises(PyverbsRDMAError) as caught:
        action()
    assert caught.value.error_code == code


def srq_of(pd: PD, max_wr: int = 8) -> SRQ:
    return SRQ(pd, SrqInitAttr(SrqAttr(max_wr=max_wr, max_sge=2)))


def receive(endpoint: Endpoint, wr_id: int) -> RecvWR:
    return endpoint.recv_wr(0, 64, wr_id=wr_id)


def test_two_queue_pairs_take_from_one_queue_in_order(device: str) -> None:
    client, server = connected(device, srq=srq_of)
    init = QPInitAttr(RC, None, server.cq, server.cq, server.srq, QPCap())
    server_qps = [server.qp, QP(server.pd, init, QPAttr())]
    other = Endpoint(device)
    other.connect(server_of(server, server_qps[1]))
    server_of(server, server_qps[1]).connect(other)
    assert server.srq is not None
    for wr_id in range(3):
        server.srq.post_recv(receive(server, wr_id))
    for sender in (client, other, client):
        sender.qp.post_send(sender.send_wr())
        poll(sender.cq)
    done = poll(server.cq, 3)
    assert [wc.wr_id for wc in done] == [0, 1, 2]
    numbers = [qp.qp_num for qp in server_qps]
    assert [wc.qp_num for wc in done] == [numbers[0], numbers[1], numbers[0]]


def test_its_receives_are_of_its_own_protection_domain(device: str) -> None:
    """Which need not be that of the queue pairs that take them."""
    regions: list[MR] = []

    def elsewhere(pd: PD) -> SRQ:
        other = PD(pd.ctx)
        regions.append(MR(other, 64, e.IBV_ACCESS_LOCAL_WRITE))
        return srq_of(other)

    client, server = connected(device, srq=elsewhere)
    assert server.srq is not None
    region = regions[1]
    server.srq.post_recv(RecvWR(num_sge=1, sg=[SGE(region.buf, 64, region.lkey)]))
    server.srq.post_recv(receive(server, 7))
    statuses = []
    for _ in range(2):
        client.qp.post_send(client.send_wr())
        statuses.append(poll(server.cq)[0].status)
    assert statuses == [e.IBV_WC_SUCCESS, e.IBV_WC_LOC_PROT_ERR]


class _View:
    """The server with another of its queue pairs."""

    def __init__(self, server: Endpoint, qp: QP) -> None:
        self.__dict__.update(server.__dict__, qp=qp)

    path = Endpoint.path
    connect = Endpoint.connect


def server_of(server: Endpoint, qp: QP) -> Endpoint:
    view: Endpoint = _View(server, qp)  # type: ignore[assignment]
    return view


@pytest.mark.parametrize("attr", [SrqAttr(0), SrqAttr(1 << 30), SrqAttr(10, max_sge=1 << 10)])
def test_what_the_device_cannot_have_is_refused(pd: PD, attr: SrqAttr) -> None:
    refused(lambda: SRQ(pd, SrqInitAttr(attr)), errno.EINVAL)


def test_attributes_can_be_queried_and_changed(pd: PD) -> None:
    srq = srq_of(pd)
    srq.modify(SrqAttr(srq_limit=3), LIMIT)
    srq.modify(SrqAttr(max_wr=20), MAX_WR)
    attr = srq.query()
    assert (attr.max_wr, attr.max_sge, attr.srq_limit) == (20, 2, 3)
    refused(lambda: srq.modify(SrqAttr(srq_limit=21), LIMIT), errno.EINVAL)
    refused(lambda: srq.modify(SrqAttr(max_wr=2), MAX_WR), errno.EINVAL)
    refused(lambda: srq.modify(SrqAttr(max_wr=1 << 30), MAX_WR), errno.EINVAL)
    assert srq.query().max_wr == 20


def test_the_limit_of_a_new_queue_is_off(pd: PD) -> None:
    assert SRQ(pd, SrqInitAttr(SrqAttr(8, 1, srq_limit=4))).query().srq_limit == 0


def test_running_low_is_told_once(device: str) -> None:
    client, server = connected(device, srq=srq_of)
    srq = server.srq
    assert srq is not None
    for wr_id in range(4):
        srq.post_recv(receive(server, wr_id))
    srq.modify(SrqAttr(srq_limit=3), LIMIT)
    for _ in range(3):
        client.qp.post_send(client.send_wr())
        poll(client.cq)
    assert async_event(server.context) == e.IBV_EVENT_SRQ_LIMIT_REACHED
    assert srq.query().srq_limit == 0


def test_a_full_queue_takes_what_fits(device: str) -> None:
    client, server = connected(device, srq=lambda pd: srq_of(pd, 2))
    srq = server.srq
    assert srq is not None
    third = receive(server, 3)
    second = receive(server, 2)
    first = receive(server, 1)
    first.next_wr, second.next_wr = second, third
    bad = RecvWR()
    refused(lambda: srq.post_recv(first, bad), errno.ENOMEM)
    assert bad.wr_id == 3
    for _ in range(2):
        client.qp.post_send(client.send_wr())
    assert [wc.wr_id for wc in poll(server.cq, 2)] == [1, 2]


def test_too_many_elements_are_refused(device: str) -> None:
    _, server = connected(device, srq=srq_of)
    assert server.srq is not None
    wr = RecvWR(wr_id=4, num_sge=3, sg=[server.sge(0, 1)] * 3)
    bad = RecvWR()
    refused(lambda: server.srq.post_recv(wr, bad), errno.EINVAL)
    assert bad.wr_id == 4


def test_a_queue_pair_with_a_shared_queue_has_none_of_its_own(device: str) -> None:
    _, server = connected(device, srq=srq_of)
    bad = RecvWR()
    refused(lambda: server.qp.post_recv(receive(server, 5), bad), errno.EINVAL)
    assert bad.wr_id == 5


def test_receives_stay_when_a_queue_pair_fails(device: str) -> None:
    client, server = connected(device, srq=srq_of)
    assert server.srq is not None
    server.srq.post_recv(receive(server, 1))
    server.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert async_event(server.context) == e.IBV_EVENT_QP_LAST_WQE_REACHED
    assert server.cq.poll() == (0, [])
    client.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    client.qp.post_send(client.send_wr(wr_id=2))
    assert poll(client.cq)[0].status == FLUSHED


def test_closing_it_closes_its_queue_pairs(device: str) -> None:
    _, server = connected(device, srq=srq_of)
    srq = server.srq
    assert srq is not None
    srq.close()
    srq.close()
    for use in (lambda: server.qp.qp_state, srq.query, lambda: srq.post_recv(receive(server, 1))):
        with pytest.raises(PyverbsUserError, match="closed"):
            use()


def test_closing_the_domain_closes_it(pd: PD) -> None:
    srq = srq_of(pd)
    pd.close()
    with pytest.raises(PyverbsUserError, match="closed"):
        srq.get_srq_num()


def test_a_context_creates_with_extended_attributes(pd: PD) -> None:
    attr = SrqInitAttrEx(max_wr=5)
    refused(lambda: SRQ(pd.ctx, attr), errno.EINVAL)
    attr.pd = pd
    attr.srq_type = e.ibv_srq_type.IBV_SRQT_BASIC
    assert SRQ(pd.ctx, attr).query().max_wr == 5
    for kind in (e.ibv_srq_type.IBV_SRQT_XRC, e.ibv_srq_type.IBV_SRQT_TM):
        attr.srq_type = kind
        refused(lambda: SRQ(pd.ctx, attr), errno.EOPNOTSUPP)
    with pytest.raises(PyverbsUserError):
        SRQ(CQ(pd.ctx, 4), SrqInitAttr(SrqAttr()))  # type: ignore[arg-type]


def test_there_is_no_tag_matching(pd: PD) -> None:
    bad = OpsWr()
    refused(lambda: srq_of(pd).post_srq_ops(OpsWr(wr_id=6, tag=1), bad), errno.EOPNOTSUPP)
    assert (bad.wr_id, bad.tag) == (6, 1)
