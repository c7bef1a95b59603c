"""A request with two faults is refused for the one that is looked for first.

The order is that of IBTA 1.7 section 9.7.4.1: the place in the message, what the queue pair
grants, responder resources, length, key.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from emulator.wire.atomic_eth import AtomicEth
from emulator.wire.feth import Feth, Placement
from emulator.wire.imm import ImmDt
from emulator.wire.opcode import ExtensionHeader, Opcode
from emulator.wire.reth import Reth
from kvlane.verbs.enums import AccessFlags, QpState
from kvlane.verbs.protocols import QpOptions
from tests.support.roce_pair import ALL_ACCESS, reseal
from tests.support.roce_script import NAK_ACCESS, NAK_INVALID, RNR, Script

RNR_TIMER_CODE = 1
_ATOMICS = {Opcode.RC_COMPARE_SWAP, Opcode.RC_FETCH_ADD}
_RESOURCE = {
    *_ATOMICS,
    Opcode.RC_RDMA_READ_REQUEST,
    Opcode.RC_ATOMIC_WRITE,
    Opcode.RC_FLUSH,
}
OPCODES = [*sorted(_RESOURCE), Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE]
FAULTS = ["sequence", "permission", "resources", "length", "key"]
"""In the order in which they are looked for."""
PAIRS = [(one, other) for i, one in enumerate(FAULTS) for other in FAULTS[i:]]
TOO_LONG = b"\x80\x00\x00\x01"
"""2^31 + 1, which no RETH that is made here says."""
DMA_LENGTH_AT = 24
"""Behind BTH, address and key; FLUSH has a FETH before."""


@dataclass
class Request:
    """What is sent, and to whom; a fault changes a part of either."""

    script: Script
    opcode: Opcode
    key: int
    addr: int
    too_long: bool = False
    length: int = 8

    def spoil(self, fault: str) -> None:
        script, record = self.script, self.script.port.engine.qps.table[self.script.port.qp]
        if fault == "sequence":
            header = Reth(self.addr, self.key, 512)
            script.request(Opcode.RC_RDMA_WRITE_FIRST, 0, header, payload=bytes(256), ack=False)
        elif fault == "permission":
            record.access = 0
        elif fault == "resources":
            record.max_dest_rd_atomic = 0
            record.rq_head = record.rq_tail
        elif fault == "length":
            self.too_long = True
            if self.opcode in _ATOMICS:
                self.addr += 1  # these have no length, but a word that must be aligned
        else:
            self.key ^= 1

    def headers(self) -> tuple[ExtensionHeader, ...]:
        reth = Reth(self.addr, self.key, self.length)
        if self.opcode in _ATOMICS:
            return (AtomicEth(self.addr, self.key, 1, 0),)
        if self.opcode == Opcode.RC_FLUSH:
            return (Feth(Placement.GLOBAL), reth)
        if self.opcode == Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE:
            return (reth, ImmDt(1))
        return (reth,)

    def answers(self, psn: int) -> list[str]:
        has_payload = self.opcode in (
            Opcode.RC_ATOMIC_WRITE,
            Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
        )
        payload = bytes(8) if has_payload else b""
        script, first = self.script, self.script.pair.a.first_psn
        frame, descriptor = script.frame(self.opcode, first + psn, *self.headers(), payload=payload)
        raw = bytearray(frame)
        if self.too_long and self.opcode not in _ATOMICS:
            at = DMA_LENGTH_AT + (4 if self.opcode == Opcode.RC_FLUSH else 0)
            raw[at : at + 4] = TOO_LONG
        script.port.receive(reseal(raw, descriptor), 0)
        return script.answers()


def sound_request(opcode: Opcode) -> Request:
    script = Script(256, QpOptions(min_rnr_timer_code=RNR_TIMER_CODE))
    access = ALL_ACCESS | AccessFlags.FLUSH_GLOBAL
    script.port.engine.qps.table[script.port.qp].access = int(access)
    region = script.port.region(512, access)
    script.port.recv(region, 8)
    return Request(script, opcode, region.key, region.addr)


def syndrome(opcode: Opcode, fault: str) -> int:
    """That which a request of this kind meets for one fault."""
    if fault in ("permission", "key"):
        return NAK_ACCESS
    if fault == "resources" and opcode not in _RESOURCE:
        return RNR | RNR_TIMER_CODE
    return NAK_INVALID


@pytest.mark.parametrize("faults", PAIRS, ids="+".join)
@pytest.mark.parametrize("opcode", OPCODES, ids=lambda opcode: Opcode(opcode).name)
def test_the_first_fault_counts(opcode: Opcode, faults: tuple[str, str]) -> None:
    request = sound_request(opcode)
    # The half message of a wrong place needs the permissions that are taken away after it.
    for fault in dict.fromkeys(faults):
        request.spoil(fault)
    psn = 1 if "sequence" in faults else 0
    expected = syndrome(opcode, faults[0])
    assert request.answers(psn) == [f"NAK {psn} {expected:#04x}"]
    waits = expected == RNR | RNR_TIMER_CODE
    assert request.script.port.state == (QpState.RTS if waits else QpState.ERR)


@pytest.mark.parametrize("opcode", OPCODES, ids=lambda opcode: Opcode(opcode).name)
def test_without_a_fault_it_is_served(opcode: Opcode) -> None:
    request = sound_request(opcode)
    (answer,) = request.answers(0)
    assert not answer.startswith("NAK")
    assert request.script.port.state == QpState.RTS


@pytest.mark.parametrize("fault", ["permission", "key"])
def test_a_read_of_nothing_has_no_fault_of_those(fault: str) -> None:
    """IBTA 1.7 C9-88; a place to remember it in it needs as well."""
    request = sound_request(Opcode.RC_RDMA_READ_REQUEST)
    request.length = 0
    request.spoil(fault)
    assert request.answers(0) == ["ONLY 0"]
    request.spoil("resources")
    assert request.answers(1) == [f"NAK 1 {NAK_INVALID:#04x}"]


def test_a_repetition_that_asks_for_too_much_is_none() -> None:
    """It is dropped, and harms no connection."""
    request = sound_request(Opcode.RC_RDMA_READ_REQUEST)
    request.script.port.engine.qps.table[request.script.port.qp].expected_psn += 1 << 23
    request.script.port.engine.qps.table[request.script.port.qp].expected_psn &= 0xFFFFFF
    request.spoil("length")
    assert request.answers(0) == []
    assert request.script.port.state == QpState.RTS
