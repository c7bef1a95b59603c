"""A port with several GIDs: a queue pair sends from that of its path, and takes nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.link.gid import gid_halves, gid_of_halves
from emulator.roce.attributes import REQUIRED, AddressHandle, QpAttributes, QpMask
from emulator.wire.icrc import icrc
from emulator.wire.ip import emit_headers
from emulator.wire.packet import ICRC_BYTES, emit_icrc
from kvlane.errors import VerbsError
from kvlane.verbs.enums import Mtu, QpState, QpType, WcStatus, WrOpcode
from tests.support.roce_pair import Frame, Pair
from tests.support.roce_work import part, post, statuses, to_port, work


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_requests_and_answers_go_between_the_gids_of_the_path(opcode: WrOpcode, index: int) -> None:
    pair = Pair(gid_index=index)
    local, remote = pair.a.region(3000), pair.b.region(3000)
    remote.data[:] = local.data[:] = 7
    seen: set[tuple[bytes, bytes]] = set()

    def watched(frames: list[Frame]) -> list[Frame]:
        for _, frame in frames:
            source = gid_of_halves(frame["src_hi"], frame["src_lo"])
            seen.add((source, gid_of_halves(frame["dst_hi"], frame["dst_lo"])))
        return frames

    pair.to_a = pair.to_b = watched
    pair.a.send(opcode, local, 3000, remote=remote)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
    ours, theirs = (port.engine.gids[index] for port in (pair.a, pair.b))
    assert seen == {(ours, theirs), (theirs, ours)}


def test_what_is_for_another_gid_is_not_for_this_queue_pair() -> None:
    pair = Pair()
    local = pair.a.region(16)
    pair.a.send(WrOpcode.RDMA_WRITE, local, 16, remote=pair.b.region(16))
    ((payload, frame),) = pair.a.transmit(0)
    accepted = pair.b.engine.counters()["rx_accepted"]
    other = frame.copy()
    other.dst_hi, other.dst_lo = gid_halves(pair.b.engine.gids[1])
    _reseal_and_receive(pair, payload, other)
    assert pair.b.engine.counters()["rx_accepted"] == accepted
    assert pair.b.engine.counters()["rx_unknown_qp"] == 1
    pair.b.receive((payload, frame), 0)
    assert pair.b.engine.counters()["rx_accepted"] == accepted + 1


def _reseal_and_receive(pair: Pair, payload: bytes, frame: Any) -> None:
    """With the ICRC that the changed address needs."""
    body = payload[:-ICRC_BYTES]
    sealed = body + emit_icrc(icrc(emit_headers(frame, len(payload)), body))
    pair.b.receive((sealed, frame), 0)


def test_a_datagram_goes_from_the_gid_that_it_names_or_else_the_first() -> None:
    pair = Pair(kind=QpType.UD)
    source = pair.a.region(16)
    hi, lo = gid_halves(pair.b.engine.gids[1])
    local_hi, local_lo = gid_halves(pair.a.engine.gids[1])
    second = {"ud_hi": hi, "ud_lo": lo, "ud_local_hi": local_hi, "ud_local_lo": local_lo}
    for fields in (to_port(pair.b), {**to_port(pair.b), **second}):
        post(pair.a, work(WrOpcode.SEND, [part(source)], **fields))
    froms = [gid_of_halves(frame.src_hi, frame.src_lo) for _, frame in pair.a.transmit(0)]
    assert froms == list(pair.a.engine.gids)


def test_a_gid_that_the_port_has_not_is_refused_and_nothing_changes() -> None:
    pair = Pair()
    qps = pair.a.engine.qps
    qp = pair.a.new_qp()
    attributes = QpAttributes(
        qp_state=QpState.RTR,
        ah=AddressHandle(dgid=pair.b.engine.gid, sgid_index=2),
        path_mtu=int(Mtu.MTU_1024),
        dest_qp_num=pair.b.number,
    )
    mask = QpMask.STATE | REQUIRED[QpState.INIT, QpState.RTR][QpType.RC]
    with pytest.raises(VerbsError, match="no GID 2"):
        qps.modify(qp, attributes, mask)
    assert qps.state(qp) == QpState.INIT
