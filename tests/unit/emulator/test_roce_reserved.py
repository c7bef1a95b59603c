"""Opcodes that are reserved or not served: refused by RC, dropped by all others."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.trace.events import NakSent
from emulator.trace.tracer import Tracer
from emulator.wire.opcode import Opcode
from kvlane.verbs.enums import EventType, QpState, QpType, WcStatus
from tests.support.roce_pair import reseal
from tests.support.roce_script import NAK_INVALID, NAK_SEQUENCE, Script, reth
from tests.support.roce_work import post_receive, receive, statuses

RESERVED = [0x15, 0x18, 0x19, 0x1A, 0x1B, 0x1E, 0x1F]
"""Of RC; 0x15 is RESYNC, which only reliable datagrams have (IBTA 1.7 section 9.2, table 38)."""


def deliver(script: Script, opcode: int, psn: int, length: int = 8) -> list[str]:
    """A sealed frame with ``opcode`` in place of a right one; what is answered."""
    base = script.pair.a.first_psn
    payload, descriptor = script.frame(Opcode.RC_SEND_ONLY, base + psn, payload=bytes(length))
    forged = bytearray(payload)
    forged[0] = opcode
    script.port.receive(reseal(forged, descriptor), 0)
    return script.answers()


def test_every_operation_is_served_or_reserved() -> None:
    served = {opcode & 0x1F for opcode in Opcode if opcode < 0x20}
    assert sorted({*served, *RESERVED}) == list(range(0x20))
    assert not served & set(RESERVED)


@pytest.mark.parametrize("length", [0, 8, 256])
@pytest.mark.parametrize("opcode", RESERVED)
def test_rc_refuses_it_as_an_invalid_request(opcode: int, length: int) -> None:
    script = Script(256)
    post_receive(script.port, receive(wr_id=4))
    assert deliver(script, opcode, 0, length) == [f"NAK 0 {NAK_INVALID:#04x}"]
    assert script.port.state == QpState.ERR
    assert statuses(script.port.poll()) == [WcStatus.WR_FLUSH_ERR]
    assert script.counter("resp_invalid_request") == 1
    assert script.counter("rx_bad_header") == 0
    assert [e.event for e in script.port.engine.take_events()] == [EventType.QP_REQ_ERR]


@pytest.mark.parametrize("opcode", RESERVED)
def test_order_comes_first(opcode: int) -> None:
    """Out of turn it says nothing about the connection, so the connection lives on."""
    script = Script(256)
    region = script.port.region(8)
    only = Opcode.RC_RDMA_WRITE_ONLY
    assert script.request(only, 0, reth(region, 8), payload=bytes(8)) == ["ACK 0"]
    assert deliver(script, opcode, 0) == []
    assert deliver(script, opcode, 2) == [f"NAK 1 {NAK_SEQUENCE:#04x}"]
    assert script.port.state == QpState.RTS
    assert script.request(only, 1, reth(region, 8), payload=bytes(8))[0] == "ACK 1"


@pytest.mark.parametrize("opcode", RESERVED)
def test_in_the_midst_of_a_message_too(opcode: int) -> None:
    script = Script(256)
    region = script.port.region(512)
    script.request(Opcode.RC_RDMA_WRITE_FIRST, 0, reth(region, 512), payload=bytes(256))
    assert deliver(script, opcode, 1) == [f"NAK 1 {NAK_INVALID:#04x}"]


@pytest.mark.parametrize("opcode", [0x44, 0x64, 0x24, 0xA4, 0xE0])
def test_an_opcode_of_another_service_is_dropped(opcode: int) -> None:
    script = Script(256)
    assert deliver(script, opcode, 0) == []
    assert script.port.state == QpState.RTS
    assert script.counter("rx_bad_header") == 1


@pytest.mark.parametrize(("kind", "service"), [(QpType.UC, 0x20), (QpType.UD, 0x60)])
def test_unreliable_services_drop_it(kind: QpType, service: int) -> None:
    for operation in (*RESERVED, Opcode.RC_FLUSH, Opcode.RC_ATOMIC_WRITE):
        script = Script(256, kind=kind)
        assert deliver(script, service | operation, 0) == []
        assert script.port.state == QpState.RTS
        assert script.counter("rx_bad_header") == 1


def test_the_peer_is_told_of_it_in_words() -> None:
    script = Script(256)
    told: list[Any] = []
    Tracer(script.port.engine, told.append, lambda: 0)
    deliver(script, 0x1B, 0)
    (nak,) = [event for event in told if isinstance(event, NakSent)]
    assert nak.reason == "opcode 0x1b is reserved or not served"
