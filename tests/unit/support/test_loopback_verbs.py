"""The loopback NIC itself: the traps that it sets for its users do spring."""

from __future__ import annotations

import numpy as np
import pytest

from kvlane.errors import QueueFullError
from kvlane.verbs.enums import AccessFlags, QpState, SendFlags, WcStatus, WrOpcode
from kvlane.verbs.protocols import Device, QpOptions
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, new_records
from tests.support.loopback_verbs import LoopbackFabric, connect


def completions(cq: object) -> list[WcStatus]:
    out = new_records(WC, 16)
    return [WcStatus(int(status)) for status in out["status"][: cq.poll(out)]]  # type: ignore[attr-defined]


def send_request(addr: int, lkey: int, *, opcode: WrOpcode = WrOpcode.SEND, rkey: int = 0):  # type: ignore[no-untyped-def]
    request = new_records(SEND_WR, 1)
    request["opcode"], request["send_flags"] = opcode, SendFlags.SIGNALED
    request["local_addr"], request["length"], request["lkey"] = addr, 8, lkey
    request["remote_addr"], request["rkey"] = addr, rkey
    return request


def test_sends_wait_for_a_receive_and_entries_for_a_poll() -> None:
    fabric = LoopbackFabric()
    near, far = fabric.devices
    device: Device = near  # the protocols are met
    near_cq, far_cq = near.create_cq(8), far.create_cq(8)
    near_qp = near.create_qp(near_cq, QpOptions(max_send_wr=1))
    far_qp = far.create_qp(far_cq, QpOptions())
    connect([near_qp, far_qp])
    source = device.register(np.arange(8, dtype=np.uint8), AccessFlags(0))
    target = np.zeros(8, np.uint8)
    inbox = far.register(target, AccessFlags.LOCAL_WRITE)
    near_qp.post_send(send_request(source.addr, source.lkey))
    assert not fabric.progress()
    receive = new_records(RECV_WR, 1)
    receive["local_addr"], receive["length"], receive["lkey"] = inbox.addr, 8, inbox.lkey
    far_qp.post_recv(receive)
    assert fabric.progress()
    assert target.tolist() == list(range(8))
    with pytest.raises(QueueFullError):
        near_qp.post_send(send_request(source.addr, source.lkey))
    assert completions(near_cq) == completions(far_cq) == [WcStatus.SUCCESS]
    near_qp.post_send(send_request(source.addr, source.lkey))


@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_READ, WrOpcode.RDMA_WRITE])
def test_access_without_the_right_breaks_both_ends(opcode: WrOpcode) -> None:
    fabric = LoopbackFabric()
    near, far = fabric.devices
    near_cq, far_cq = near.create_cq(8), far.create_cq(8)
    near_qp = near.create_qp(near_cq, QpOptions())
    far_qp = far.create_qp(far_cq, QpOptions())
    connect([near_qp, far_qp])
    local = near.register(np.zeros(8, np.uint8), AccessFlags.LOCAL_WRITE)
    request = send_request(local.addr, local.lkey, opcode=opcode, rkey=0xBAD)
    near_qp.post_send(request)
    near_qp.post_send(request)
    fabric.progress()
    assert completions(near_cq) == [WcStatus.REM_ACCESS_ERR, WcStatus.WR_FLUSH_ERR]
    assert (near_qp.state, far_qp.state) == (QpState.ERR, QpState.ERR)
