"""One end of a connection alone, against a peer that a test plays packet by packet."""

from __future__ import annotations

from typing import Any

from emulator.wire.aeth import Aeth
from emulator.wire.atomic_eth import AtomicAckEth, AtomicEth
from emulator.wire.bth import Bth
from emulator.wire.opcode import ExtensionHeader, Opcode
from emulator.wire.packet import RocePacket, pad_count
from emulator.wire.reth import Reth
from kvlane.verbs.enums import QpType
from kvlane.verbs.protocols import QpOptions
from tests.support.frame_strategies import new_frame
from tests.support.roce_pair import OPTIONS, Frame, Pair, Port, Region, reseal

ACK = 0x1F
NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS, NAK_OPERATION = 0x60, 0x61, 0x62, 0x63
RNR = 0x20
"""Syndromes; the timer code is added to the last."""


class Script:
    """``port`` is the engine under test; PSNs count from the first of each direction."""

    def __init__(
        self,
        mtu_bytes: int = 256,
        options: QpOptions = OPTIONS,
        kind: QpType = QpType.RC,
        first_psn: int | None = None,
    ) -> None:
        self.pair = Pair(mtu_bytes, options, first_psn, kind)
        self.port: Port = self.pair.b
        self.now = 0

    def frame(
        self,
        opcode: Opcode,
        psn: int,
        *extensions: ExtensionHeader,
        payload: bytes = b"",
        ack: bool = True,
        **bth: Any,
    ) -> Frame:
        """A sealed frame to the port, whatever its sense."""
        packet = RocePacket(
            Bth(
                opcode,
                bth.pop("dest_qp", self.port.number),
                psn & 0xFFFFFF,
                pad_count(len(payload)),
                ack_request=ack,
                **bth,
            ),
            extensions,
            payload,
        )
        descriptor = new_frame(
            "::ffff:10.0.0.1", "::ffff:10.0.0.2", src_port=0xC000, dst_port=4791, ip_frag=0x4000
        )
        return reseal(bytearray(packet.emit() + bytes(4)), descriptor)

    def request(
        self,
        opcode: Opcode,
        psn: int,
        *extensions: ExtensionHeader,
        payload: bytes = b"",
        ack: bool = True,
        **bth: Any,
    ) -> list[str]:
        """Deliver request ``psn``, counted from the first; return what the port answers."""
        base = self.pair.a.first_psn
        self.port.receive(
            self.frame(opcode, base + psn, *extensions, payload=payload, ack=ack, **bth), self.now
        )
        return self.answers()

    def respond(
        self, opcode: Opcode, psn: int, *extensions: ExtensionHeader, payload: bytes = b""
    ) -> None:
        """Deliver the response to request ``psn`` of the port."""
        base = self.port.first_psn
        self.port.receive(
            self.frame(opcode, base + psn, *extensions, payload=payload, ack=False), self.now
        )

    def acknowledge(self, psn: int, syndrome: int = ACK) -> None:
        """Deliver an acknowledgement of either sort."""
        self.respond(Opcode.RC_ACKNOWLEDGE, psn, Aeth(syndrome, 0))

    def packets(self) -> list[RocePacket]:
        """What the port sends now."""
        sent = []
        while frames := self.port.transmit(self.now):
            sent += [RocePacket.parse(frame)[0] for frame, _ in frames]
        return sent

    def answers(self) -> list[str]:
        """What it sends as a responder, in words: kind, PSN, and the syndrome of a NAK."""
        return [_answer(packet, self.pair.a.first_psn) for packet in self.packets()]

    def requests(self) -> list[str]:
        """What it sends as a requester, in words: opcode and PSN."""
        base = self.port.first_psn
        return [
            f"{Opcode(p.bth.opcode).name[3:]} {(p.bth.psn - base) & 0xFFFFFF}"
            for p in self.packets()
        ]

    def counter(self, name: str) -> int:
        """A counter of the port."""
        return self.port.engine.counters()[name]


def _answer(packet: RocePacket, base: int) -> str:
    psn = (packet.bth.psn - base) & 0xFFFFFF
    if packet.bth.opcode == Opcode.RC_ACKNOWLEDGE:
        syndrome = packet.extension(Aeth).syndrome
        return f"ACK {psn}" if syndrome == ACK else f"NAK {psn} {syndrome:#04x}"
    if packet.bth.opcode == Opcode.RC_ATOMIC_ACKNOWLEDGE:
        return f"ATOMIC {psn} {packet.extension(AtomicAckEth).original_value}"
    return f"{Opcode(packet.bth.opcode).name.removeprefix('RC_RDMA_READ_RESPONSE_')} {psn}"


def reth(region: Region, length: int, offset: int = 0, rkey: int | None = None) -> Reth:
    """A RETH for a part of a region."""
    return Reth(region.addr + offset, region.key if rkey is None else rkey, length)


def atomic_eth(region: Region, swap_or_add: int, compare: int = 0, offset: int = 0) -> AtomicEth:
    """An AtomicETH for a word of a region."""
    return AtomicEth(region.addr + offset, region.key, swap_or_add, compare)
