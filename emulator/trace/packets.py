"""A packet as an event, read with the plain codecs of ``emulator.wire``."""

from __future__ import annotations

from typing import Any

from emulator.trace.events import Direction, Packet
from emulator.wire.aeth import Aeth, NakCode, SyndromeClass
from emulator.wire.bth import Bth
from emulator.wire.deth import Deth
from emulator.wire.errors import WireError
from emulator.wire.icrc import icrc
from emulator.wire.ip import emit_headers
from emulator.wire.opcode import Opcode
from emulator.wire.packet import ICRC_BYTES, RocePacket


def packet_event(payload: bytes, frame: Any, direction: Direction, at_ns: int) -> Packet:
    """The event of a frame (BTH to ICRC, and its ``FRAME`` record), whatever its bytes are."""
    try:
        packet, sent_icrc = RocePacket.parse(payload)
        headers = emit_headers(frame, len(payload))
    except WireError as error:
        return _unreadable(payload, direction, at_ns, str(error))
    wrong = icrc(headers, payload[:-ICRC_BYTES]) != sent_icrc
    aeth = next((header for header in packet.extensions if isinstance(header, Aeth)), None)
    deth = next((header for header in packet.extensions if isinstance(header, Deth)), None)
    return Packet(
        at_ns=at_ns,
        direction=direction,
        opcode=opcode_name(packet.bth.opcode),
        dst_qpn=packet.bth.dest_qp,
        src_qpn=None if deth is None else deth.source_qp,
        psn=packet.bth.psn,
        length=len(packet.payload),
        flags=_flags(packet.bth),
        syndrome=None if aeth is None else aeth.syndrome,
        answer="" if aeth is None else answer_name(aeth),
        msn=None if aeth is None else aeth.msn,
        fault="the ICRC is wrong" if wrong else "",
    )


def opcode_name(opcode: int) -> str:
    """``RC_SEND_ONLY``, or ``0x15`` for what is not spoken here."""
    try:
        return Opcode(opcode).name
    except ValueError:
        return f"{opcode:#04x}"


def answer_name(aeth: Aeth) -> str:
    """``ACK``, ``RNR_NAK``, or ``NAK`` with its code."""
    kind = aeth.syndrome_class
    if kind is SyndromeClass.NAK:
        return f"NAK {nak_code_name(aeth.syndrome_value)}"
    return kind.name


def nak_code_name(code: int) -> str:
    """Name of a ``NakCode``, or its number where the code is reserved."""
    try:
        return NakCode(code).name
    except ValueError:
        return f"RESERVED_{code}"


def _flags(bth: Bth) -> tuple[str, ...]:
    return tuple(
        name for name in ("solicited", "ack_request", "fecn", "becn") if getattr(bth, name)
    )


def _unreadable(payload: bytes, direction: Direction, at_ns: int, fault: str) -> Packet:
    """What can be told of bytes that are no packet: those of them that would be a BTH."""
    head = payload[: Bth.NBYTES].ljust(Bth.NBYTES, b"\0")
    return Packet(
        at_ns=at_ns,
        direction=direction,
        opcode=opcode_name(head[0]),
        dst_qpn=int.from_bytes(head[5:8], "big"),
        src_qpn=None,
        psn=int.from_bytes(head[9:12], "big"),
        length=max(0, len(payload) - Bth.NBYTES - ICRC_BYTES),
        fault=fault,
    )
