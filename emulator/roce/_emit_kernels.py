"""Building frames in the burst that is being filled."""

from __future__ import annotations

from typing import Any

from emulator.roce.state import MAX_FRAME_BYTES, counters_at, frame_at
from emulator.wire._icrc_kernels import frame_icrc
from kvlane.jit import kernel
from kvlane.rawmem import bytes_at

BTH_BYTES = 12
RETH_BYTES = 16
AETH_BYTES = 4
IMM_BYTES = 4
ICRC_BYTES = 4

_MIGREQ = 0x40
"""MIGRATED, as HCAs send it; soft-RoCE sends 0 and receivers take both."""
_DONT_FRAGMENT = 0x4000


@kernel
def put_be(address: int, value: int, nbytes: int) -> None:
    """Store ``value`` in network order."""
    out = bytes_at(address, nbytes)
    for i in range(nbytes):
        out[i] = (value >> (8 * (nbytes - 1 - i))) & 0xFF


@kernel
def get_be(address: int, nbytes: int) -> int:
    """Load a number in network order."""
    data = bytes_at(address, nbytes)
    value = 0
    for i in range(nbytes):
        value = (value << 8) | int(data[i])
    return int(value)


@kernel
def has_room(nic: Any) -> bool:
    """True when one more frame of any size fits the burst."""
    fits = nic.tx_bytes + MAX_FRAME_BYTES <= nic.tx_max_bytes
    return bool(fits and nic.tx_count < nic.tx_max_frames)


@kernel
def begin_frame(nic: Any, qp: Any, opcode: int, psn: int, ack_request: bool) -> int:
    """Write a BTH at the end of the burst and return its address (IBTA 1.7 section 9.2)."""
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
    bth[8] = 0x80 if ack_request else 0
    bth[9] = (psn >> 16) & 0xFF
    bth[10] = (psn >> 8) & 0xFF
    bth[11] = psn & 0xFF
    return int(address)


@kernel
def put_aeth(address: int, syndrome: int, msn: int) -> None:
    """Write an AETH (IBTA 1.7 section 9.5.3)."""
    put_be(address, (syndrome << 24) | (msn & 0xFFFFFF), AETH_BYTES)


@kernel
def put_reth(address: int, remote_addr: int, rkey: int, length: int) -> None:
    """Write a RETH (IBTA 1.7 section 9.5.1)."""
    put_be(address, remote_addr, 8)
    put_be(address + 8, rkey, 4)
    put_be(address + 12, length, 4)


@kernel
def finish_frame(nic: Any, qp: Any, address: int, header_bytes: int, payload_bytes: int) -> None:
    """Pad, describe, sum and commit the frame whose header and payload are in place."""
    pad = -payload_bytes & 3
    end = address + header_bytes + payload_bytes
    if pad != 0:
        put_be(end, 0, pad)
        bth = bytes_at(address, 2)
        bth[1] = _MIGREQ | (pad << 4)
    length = header_bytes + payload_bytes + pad
    frame = frame_at(nic.tx_frames, nic.tx_count)
    frame.offset = nic.tx_bytes
    frame.length = length + ICRC_BYTES
    frame.src_hi = nic.gid_hi
    frame.src_lo = nic.gid_lo
    frame.dst_hi = qp.remote_hi
    frame.dst_lo = qp.remote_lo
    frame.src_port = qp.source_port
    frame.dst_port = qp.remote_port
    frame.tos = 0
    frame.ip_id = 0
    frame.ip_frag = _DONT_FRAGMENT
    frame.flow_label = 0
    # Little-endian, unlike every other field (IBTA 1.7 section 7.8.2).
    icrc = frame_icrc(frame, address, length, nic.scratch)
    out = bytes_at(address + length, ICRC_BYTES)
    for i in range(ICRC_BYTES):
        out[i] = (icrc >> (8 * i)) & 0xFF
    nic.tx_count += 1
    nic.tx_bytes += length + ICRC_BYTES
    counters = counters_at(nic.counters, 0)
    counters.tx_frames += 1
    counters.tx_bytes += length + ICRC_BYTES
