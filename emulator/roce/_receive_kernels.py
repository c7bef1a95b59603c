"""Receiving: every frame is checked from the outside in before a queue pair sees it."""

from __future__ import annotations

from typing import Any

from emulator.roce._completer_kernels import on_acknowledge, on_read_response
from emulator.roce._emit_kernels import (
    AETH_BYTES,
    BTH_BYTES,
    ICRC_BYTES,
    IMM_BYTES,
    RETH_BYTES,
    get_be,
)
from emulator.roce._responder_kernels import on_request
from emulator.roce.state import counters_at, frame_at, qp_at
from emulator.wire._icrc_kernels import frame_icrc
from emulator.wire.opcode import Opcode
from kvlane.jit import kernel
from kvlane.rawmem import bytes_at
from kvlane.verbs.enums import QpState

_WRITE_FIRST = int(Opcode.RC_RDMA_WRITE_FIRST)
_WRITE_ONLY = int(Opcode.RC_RDMA_WRITE_ONLY)
_WRITE_ONLY_IMM = int(Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE)
_WRITE_LAST_IMM = int(Opcode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE)
_SEND_LAST_IMM = int(Opcode.RC_SEND_LAST_WITH_IMMEDIATE)
_SEND_ONLY_IMM = int(Opcode.RC_SEND_ONLY_WITH_IMMEDIATE)
_READ_REQUEST = int(Opcode.RC_RDMA_READ_REQUEST)
_RESPONSE_FIRST = int(Opcode.RC_RDMA_READ_RESPONSE_FIRST)
_RESPONSE_MIDDLE = int(Opcode.RC_RDMA_READ_RESPONSE_MIDDLE)
_RESPONSE_ONLY = int(Opcode.RC_RDMA_READ_RESPONSE_ONLY)
_ACKNOWLEDGE = int(Opcode.RC_ACKNOWLEDGE)
_RTR = int(QpState.RTR)
_RTS = int(QpState.RTS)
_UNSUPPORTED = -1


@kernel
def _extension_bytes(opcode: int) -> int:
    """Bytes between BTH and payload, or -1 for an opcode that is not served."""
    if opcode in (_WRITE_FIRST, _WRITE_ONLY, _READ_REQUEST):
        return RETH_BYTES
    if opcode == _WRITE_ONLY_IMM:
        return RETH_BYTES + IMM_BYTES
    if opcode in (_SEND_LAST_IMM, _SEND_ONLY_IMM, _WRITE_LAST_IMM):
        return IMM_BYTES
    if opcode == _RESPONSE_MIDDLE:
        return 0
    if _RESPONSE_FIRST <= opcode <= _ACKNOWLEDGE:
        return AETH_BYTES
    if 0 <= opcode < _READ_REQUEST:
        return 0
    return _UNSUPPORTED


@kernel
def _icrc_holds(nic: Any, frame: Any, address: int) -> bool:
    length = frame.length - ICRC_BYTES
    sent = bytes_at(address + length, ICRC_BYTES)
    value = 0
    for i in range(ICRC_BYTES):
        value |= int(sent[i]) << (8 * i)
    return bool(value == frame_icrc(frame, address, length, nic.scratch))


@kernel
def _find_qp(nic: Any, frame: Any, qpn: int) -> int:
    """Index of the QP that this frame may speak to, or -1: number and source must fit."""
    index = qpn & (nic.qp_capacity - 1)
    qp = qp_at(nic.qps, index)
    if qp.in_use == 0 or qp.qpn != qpn:
        return -1
    if frame.src_hi != qp.remote_hi or frame.src_lo != qp.remote_lo:
        return -1
    return int(index)


@kernel
def _dispatch(nic: Any, qp: Any, frame: Any, address: int, now: int) -> None:
    """Length and state checks, then to the half of the QP that the opcode is for."""
    counters = counters_at(nic.counters, 0)
    bth = bytes_at(address, BTH_BYTES)
    opcode = int(bth[0])
    pad = (int(bth[1]) >> 4) & 3
    extension = _extension_bytes(opcode)
    length = frame.length - BTH_BYTES - extension - pad - ICRC_BYTES
    # A forged pad must not make the length negative (linux 7244491dab34).
    if extension == _UNSUPPORTED or length < 0 or (int(bth[1]) & 15) != 0:
        counters.rx_bad_header += 1
        return
    psn = get_be(address + 9, 3)
    behind_bth = address + BTH_BYTES
    if opcode <= _READ_REQUEST:
        if qp.state not in (_RTR, _RTS):
            counters.rx_wrong_state += 1
            return
        on_request(nic, qp, opcode, psn, (bth[8] & 0x80) != 0, behind_bth, length)
        return
    if qp.state != _RTS:
        counters.rx_wrong_state += 1
        return
    if opcode == _ACKNOWLEDGE:
        on_acknowledge(nic, qp, psn, get_be(behind_bth, 1), now)
    else:
        on_read_response(nic, qp, psn, behind_bth + extension, length, now)


@kernel
def receive_burst(nic: Any, frames: int, arena: int, count: int, now: int) -> None:
    """Take ``count`` frames described at address ``frames``, whose bytes lie at ``arena``."""
    counters = counters_at(nic.counters, 0)
    for i in range(count):
        frame = frame_at(frames, i)
        address = arena + frame.offset
        counters.rx_frames += 1
        counters.rx_bytes += frame.length
        if frame.length < BTH_BYTES + ICRC_BYTES:
            counters.rx_runt += 1
            continue
        if not _icrc_holds(nic, frame, address):
            counters.rx_icrc_encapsulated += 1
            continue
        index = _find_qp(nic, frame, get_be(address + 5, 3))
        if index < 0:
            counters.rx_unknown_qp += 1
            continue
        qp = qp_at(nic.qps, index)
        # Membership is the top bit; the rest must agree (IBTA 1.7 section 10.9.3).
        if (get_be(address + 2, 2) ^ qp.pkey) & 0x7FFF:
            counters.rx_bad_pkey += 1
            continue
        _dispatch(nic, qp, frame, address, now)
