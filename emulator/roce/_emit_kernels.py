"""Building frames in the burst that is being filled."""

from __future__ import annotations

from typing import Any

from emulator.link.frames import frame_at
from emulator.roce.state import (
    MAX_FRAME_BYTES,
    counters_at,
)
from emulator.wire._byte_kernels import put_be
from emulator.wire._icrc_kernels import frame_icrc
from kvlane.jit import kernel
from kvlane.rawmem import bytes_at

BTH_BYTES = 12
RETH_BYTES = 16
AETH_BYTES = 4
FETH_BYTES = 4
IMM_BYTES = 4
IETH_BYTES = 4
DETH_BYTES = 8
ATOMIC_ETH_BYTES = 28
ATOMIC_ACK_BYTES = 8
ICRC_BYTES = 4

ACK_REQUEST = 0x80
"""Byte 8 of the BTH."""
SOLICITED = 0x80
"""Byte 1 of the BTH."""
_MIGREQ = 0x40
"""MIGRATED, as HCAs send it; soft-RoCE sends 0 and receivers take both."""
_DONT_FRAGMENT = 0x4000
_FLOW_LABEL = 0xFFFFF
"""20 bits (RFC 6437)."""
_ECT0 = 2
"""ECN capable transport (RFC 3168)."""


@kernel
def has_room(nic: Any) -> bool:
    """True when one more frame of any size fits the burst."""
    fits = nic.tx_bytes + MAX_FRAME_BYTES <= nic.tx_max_bytes
    return bool(fits and nic.tx_count < nic.tx_max_frames)


@kernel
def begin_frame(nic: Any, qp: Any, opcode: int, psn: int, ack_request: bool) -> int:
    """Write a BTH to the peer at the end of the burst; return its address (IBTA 1.7, 9.2)."""
    address = nic.tx_arena + nic.tx_bytes
    bth = bytes_at(address, BTH_BYTES)
    bth[0] = opcode
    bth[1] = _MIGREQ
    bth[2] = (qp.pkey >> 8) & 0xFF
    bth[3] = qp.pkey & 0xFF
    bth[4] = 0
    bth[5] = (qp.remote_qpn >> 16) & 0xFF
    bth[6] = (qp.remote_qpn >> 8) & 0xFF
    bth[7] = qp.remote_qpn & 0xFF
    bth[8] = ACK_REQUEST if ack_request else 0
    bth[9] = (psn >> 16) & 0xFF
    bth[10] = (psn >> 8) & 0xFF
    bth[11] = psn & 0xFF
    frame = frame_at(nic.tx_frames, nic.tx_count)
    frame.offset = nic.tx_bytes
    frame.src_hi = qp.local_hi
    frame.src_lo = qp.local_lo
    frame.dst_hi = qp.remote_hi
    frame.dst_lo = qp.remote_lo
    frame.src_port = qp.source_port
    frame.dst_port = qp.remote_port
    frame.tos = (qp.traffic_class & 0xFC) | (_ECT0 if nic.ecn != 0 else 0)
    frame.ip_id = 0
    frame.ip_frag = _DONT_FRAGMENT
    frame.flow_label = qp.flow_label
    return int(address)


@kernel
def entropy_port(flow_label: int, local_qpn: int, remote_qpn: int) -> int:
    """UDP source port of a flow, 0xC000 and up.

    It folds the flow label, or without one (0) what both ends compute alike from their numbers:
    Linux's ``rdma_get_udp_sport``, ``rdma_calc_flow_label`` and ``rdma_flow_label_to_udp_sport``.
    """
    flow = flow_label
    if flow == 0:
        flow = local_qpn * remote_qpn
        flow ^= flow >> 20
        flow ^= flow >> 40
    flow &= _FLOW_LABEL
    return ((flow & 0x3FFF) ^ ((flow & 0xFC000) >> 14)) | 0xC000


@kernel
def redirect_frame(nic: Any, qp: Any, address: int, wqe: Any) -> None:
    """Send the frame that has been begun to where a UD work request says."""
    put_be(address + 5, wqe.ud_qpn, 3)
    frame = frame_at(nic.tx_frames, nic.tx_count)
    if wqe.ud_local_hi != 0 or wqe.ud_local_lo != 0:
        frame.src_hi = wqe.ud_local_hi
        frame.src_lo = wqe.ud_local_lo
    frame.dst_hi = wqe.ud_hi
    frame.dst_lo = wqe.ud_lo
    frame.dst_port = wqe.ud_port
    frame.flow_label = wqe.ud_flow_label & _FLOW_LABEL
    if nic.source_port == 0:
        frame.src_port = entropy_port(frame.flow_label, qp.qpn, wqe.ud_qpn)
    frame.tos = (wqe.ud_traffic_class & 0xFC) | (frame.tos & 3)


@kernel
def set_solicited(address: int) -> None:
    """Ask the peer's consumer to be woken (IBTA 1.7 section 9.2.3)."""
    bth = bytes_at(address, 2)
    bth[1] = bth[1] | SOLICITED


@kernel
def put_aeth(address: int, syndrome: int, msn: int) -> None:
    """Write an AETH (IBTA 1.7 section 9.3.5)."""
    put_be(address, (syndrome << 24) | (msn & 0xFFFFFF), AETH_BYTES)


@kernel
def put_reth(address: int, remote_addr: int, rkey: int, length: int) -> None:
    """Write a RETH (IBTA 1.7 section 9.3.3)."""
    put_be(address, remote_addr, 8)
    put_be(address + 8, rkey, 4)
    put_be(address + 12, length, 4)


@kernel
def finish_frame(nic: Any, address: int, header_bytes: int, payload_bytes: int) -> None:
    """Pad, sum and commit the frame whose header and payload are in place."""
    pad = -payload_bytes & 3
    if pad != 0:
        put_be(address + header_bytes + payload_bytes, 0, pad)
        bth = bytes_at(address, 2)
        bth[1] = bth[1] | (pad << 4)
    length = header_bytes + payload_bytes + pad
    frame = frame_at(nic.tx_frames, nic.tx_count)
    frame.length = length + ICRC_BYTES
    # Little-endian, unlike every other field (IBTA 1.7 section 7.8.2).
    icrc = frame_icrc(frame, address, length, nic.icrc)
    out = bytes_at(address + length, ICRC_BYTES)
    for i in range(ICRC_BYTES):
        out[i] = (icrc >> (8 * i)) & 0xFF
    nic.tx_count += 1
    nic.tx_bytes += length + ICRC_BYTES
    counters = counters_at(nic.counters, 0)
    counters.tx_frames += 1
    counters.tx_bytes += length + ICRC_BYTES
