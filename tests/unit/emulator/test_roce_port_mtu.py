"""The MTU of the port bounds path MTUs and datagrams, both ways."""

from __future__ import annotations

import pytest

from emulator.roce.attributes import REQUIRED, QpAttributes, QpMask
from kvlane.errors import VerbsError
from kvlane.verbs.enums import Mtu, QpState, QpType, WcStatus, WrOpcode
from tests.support.roce_pair import OPTIONS, Pair, Port
from tests.support.roce_work import part, pattern, post, post_receive, receive, statuses, to_port
from tests.support.roce_work import work as send_work

GRH_BYTES = 40


def send_datagram(pair: Pair, nbytes: int) -> None:
    source, target = pair.a.region(nbytes), pair.b.region(GRH_BYTES + nbytes)
    source.data[:] = pattern(nbytes)
    post_receive(pair.b, receive([part(target)]))
    post(pair.a, send_work(WrOpcode.SEND, [part(source)], **to_port(pair.b)))
    pair.run()


@pytest.mark.parametrize("mtu", list(Mtu))
@pytest.mark.parametrize("surplus", [0, 1])
def test_a_datagram_is_what_one_packet_of_the_port_carries(mtu: Mtu, surplus: int) -> None:
    pair = Pair(kind=QpType.UD, port_mtus=(mtu, mtu))
    send_datagram(pair, mtu.nbytes + surplus)
    assert statuses(pair.a.poll()) == [WcStatus.LOC_LEN_ERR if surplus else WcStatus.SUCCESS]
    assert [int(wc.byte_len) for wc in pair.b.poll()] == (
        [] if surplus else [GRH_BYTES + mtu.nbytes]
    )


@pytest.mark.parametrize(("nbytes", "arrives"), [(1024, True), (1025, False), (4096, False)])
def test_a_datagram_longer_than_the_ports_mtu_is_dropped_and_counted(
    nbytes: int, arrives: bool
) -> None:
    pair = Pair(kind=QpType.UD, port_mtus=(Mtu.MTU_4096, Mtu.MTU_1024))
    send_datagram(pair, nbytes)
    assert statuses(pair.b.poll()) == ([WcStatus.SUCCESS] if arrives else [])
    assert pair.b.engine.counters()["rx_too_long"] == (0 if arrives else 1)
    assert pair.b.state == QpState.RTS
    send_datagram(pair, 8)
    assert statuses(pair.b.poll()) == [WcStatus.SUCCESS], "its receive was not used up"


@pytest.mark.parametrize("kind", [QpType.RC, QpType.UC])
@pytest.mark.parametrize("port_mtu", list(Mtu))
@pytest.mark.parametrize("path_mtu", list(Mtu))
def test_a_path_mtu_above_the_ports_is_refused(kind: QpType, port_mtu: Mtu, path_mtu: Mtu) -> None:
    port = Port(1, 1, OPTIONS, 0, kind, port_mtu=port_mtu)
    attributes = QpAttributes(qp_state=QpState.RTR, path_mtu=int(path_mtu), dest_qp_num=9)
    mask = QpMask.STATE | REQUIRED[QpState.INIT, QpState.RTR][kind]
    if path_mtu > port_mtu:
        wanted = f"port's MTU of {port_mtu.nbytes} bytes; use {int(port_mtu)} or less"
        with pytest.raises(VerbsError, match=wanted):
            port.engine.qps.modify(port.qp, attributes, mask)
        assert port.state == QpState.INIT
    else:
        port.engine.qps.modify(port.qp, attributes, mask)
        assert port.state == QpState.RTR
