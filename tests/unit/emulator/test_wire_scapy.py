"""Scapy as an independent reader and writer of the same packets."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.contrib import roce
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

from emulator.link.gid import gid_of_halves
from emulator.wire.aeth import Aeth
from emulator.wire.bth import Bth
from emulator.wire.icrc import icrc
from emulator.wire.ip import emit_headers, emit_packet
from emulator.wire.opcode import Opcode
from emulator.wire.packet import ICRC_BYTES, emit_icrc
from tests.support.frame_strategies import frames

SCAPY_OPCODES = roce._bth_opcodes


def scapy_bth(value: Bth) -> Any:
    return roce.BTH(
        opcode=value.opcode,
        solicited=value.solicited,
        migreq=value.migreq,
        padcount=value.pad_count,
        pkey=value.pkey,
        fecn=value.fecn,
        becn=value.becn,
        dqpn=value.dest_qp,
        ackreq=value.ack_request,
        psn=value.psn,
        icrc=0,
    )


@pytest.mark.parametrize("opcode", sorted(SCAPY_OPCODES))
def test_bth_of_every_opcode(opcode: Opcode) -> None:
    value = Bth(
        opcode=opcode,
        dest_qp=0x010203 + opcode,
        psn=0xF0E0D0 + opcode,
        pad_count=opcode % 4,
        ack_request=opcode % 2 == 1,
        solicited=opcode % 3 == 1,
        migreq=opcode % 5 == 1,
        pkey=0x7FFF,
        fecn=opcode % 7 == 1,
        becn=opcode % 2 == 0,
    )
    assert value.emit() + bytes(ICRC_BYTES) == bytes(scapy_bth(value))
    assert Bth.parse(bytes(scapy_bth(value))) == value


def test_opcode_names_and_numbers() -> None:
    ours = {int(opcode): opcode.name for opcode in Opcode}
    shared = ours.keys() & SCAPY_OPCODES.keys()
    assert {number: ours[number] for number in shared} == {
        number: SCAPY_OPCODES[number] for number in shared
    }
    assert {ours[number] for number in ours.keys() - shared} == {
        "RC_SEND_LAST_WITH_INVALIDATE",
        "RC_SEND_ONLY_WITH_INVALIDATE",
        "RC_FLUSH",
        "RC_ATOMIC_WRITE",
    }
    missing = {SCAPY_OPCODES[number] for number in SCAPY_OPCODES.keys() - shared}
    assert all(name.startswith("RD_") for name in missing)


@pytest.mark.parametrize("syndrome", [0x00, 0x1F, 0x20, 0x3F, 0x60, 0x64, 0xFF])
def test_aeth(syndrome: int) -> None:
    theirs = roce.AETH(syndrome=syndrome, msn=0xABCDEF)
    assert Aeth(syndrome, 0xABCDEF).emit() == bytes(theirs)
    assert Aeth.parse(bytes(theirs)) == Aeth(syndrome, 0xABCDEF)


def test_cnp() -> None:
    ours = Bth(Opcode.CNP, dest_qp=0x118, psn=0, becn=True, migreq=False).emit() + bytes(16)
    assert bytes(roce.cnp(0x118))[:-ICRC_BYTES] == ours


def scapy_packet(frame: Any, bth_bytes: bytes, rest: bytes) -> Any:
    """The same packet built by scapy, whose BTH then computes the ICRC itself."""
    src, dst = (
        IPv6Address(gid_of_halves(frame[f"{end}_hi"], frame[f"{end}_lo"])) for end in ("src", "dst")
    )
    udp = UDP(sport=int(frame["src_port"]), dport=int(frame["dst_port"]), chksum=0)
    bth = roce.BTH(bth_bytes + bytes(ICRC_BYTES))
    bth.remove_payload()
    bth.icrc = None
    network: Any
    if dst.ipv4_mapped is not None:
        network = IP(
            src=str(src.ipv4_mapped),
            dst=str(dst.ipv4_mapped),
            tos=int(frame["tos"]),
            id=int(frame["ip_id"]),
            flags=int(frame["ip_frag"]) >> 13,
        )
    else:
        network = IPv6(
            src=str(src), dst=str(dst), tc=int(frame["tos"]), fl=int(frame["flow_label"]), hlim=64
        )
    return network / udp / bth / Raw(rest)


@settings(max_examples=40, deadline=None)
@given(
    frame=frames(),
    opcode=st.sampled_from([Opcode.RC_SEND_ONLY, Opcode.UC_SEND_ONLY, Opcode.RC_RDMA_WRITE_MIDDLE]),
    words=st.integers(1, 40),
    becn=st.booleans(),
)
def test_icrc_of_full_packets(frame: Any, opcode: Opcode, words: int, becn: bool) -> None:
    bth = Bth(opcode, dest_qp=0x123456, psn=0x789ABC, becn=becn).emit()
    rest = bytes(range(4 * words))
    headers = emit_headers(frame, len(bth) + len(rest) + ICRC_BYTES)
    ours = emit_icrc(icrc(headers, bth + rest))
    theirs = bytes(scapy_packet(frame, bth, rest))
    assert ours == theirs[-ICRC_BYTES:]
    assert emit_packet(frame, bth + rest + ours) == theirs
