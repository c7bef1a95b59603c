"""Receiving: every frame is checked from the outside in before a queue pair sees it."""

from __future__ import annotations

from typing import Any

from emulator.link.frames import frame_at
from emulator.roce._completer_kernels import (
    on_acknowledge,
    on_atomic_response,
    on_read_response,
)
from emulator.roce._datagram_kernels import on_datagram
from emulator.roce._emit_kernels import (
    AETH_BYTES,
    ATOMIC_ACK_BYTES,
    ATOMIC_ETH_BYTES,
    BTH_BYTES,
    DETH_BYTES,
    FETH_BYTES,
    ICRC_BYTES,
    IETH_BYTES,
    IMM_BYTES,
    RETH_BYTES,
)
from emulator.roce._event_kernels import push_event
from emulator.roce._failure_kernels import end_users_of_failed_cqs
from emulator.roce._pacing_kernels import slow_down
from emulator.roce._responder_kernels import on_rc_request, on_uc_request
from emulator.roce.state import (
    counters_at,
    qp_at,
)
from emulator.wire._byte_kernels import get_be
from emulator.wire._icrc_kernels import frame_icrc
from emulator.wire.aeth import SyndromeClass
from emulator.wire.opcode import Opcode, Transport
from kvlane.jit import kernel
from kvlane.rawmem import bytes_at
from kvlane.verbs.enums import EventType, QpState, QpType

_WRITE_FIRST = int(Opcode.RC_RDMA_WRITE_FIRST)
_WRITE_ONLY = int(Opcode.RC_RDMA_WRITE_ONLY)
_WRITE_ONLY_IMM = int(Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE)
_WRITE_LAST_IMM = int(Opcode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE)
_SEND_LAST_IMM = int(Opcode.RC_SEND_LAST_WITH_IMMEDIATE)
_SEND_ONLY_IMM = int(Opcode.RC_SEND_ONLY_WITH_IMMEDIATE)
_SEND_LAST_INV = int(Opcode.RC_SEND_LAST_WITH_INVALIDATE)
_SEND_ONLY_INV = int(Opcode.RC_SEND_ONLY_WITH_INVALIDATE)
_READ_REQUEST = int(Opcode.RC_RDMA_READ_REQUEST)
_RESPONSE_FIRST = int(Opcode.RC_RDMA_READ_RESPONSE_FIRST)
_RESPONSE_MIDDLE = int(Opcode.RC_RDMA_READ_RESPONSE_MIDDLE)
_ACKNOWLEDGE = int(Opcode.RC_ACKNOWLEDGE)
_ATOMIC_ACKNOWLEDGE = int(Opcode.RC_ATOMIC_ACKNOWLEDGE)
_COMPARE_SWAP = int(Opcode.RC_COMPARE_SWAP)
_FETCH_ADD = int(Opcode.RC_FETCH_ADD)
_FLUSH = int(Opcode.RC_FLUSH)
_ATOMIC_WRITE = int(Opcode.RC_ATOMIC_WRITE)
_UD_SEND_ONLY = int(Opcode.UD_SEND_ONLY)
_UD_SEND_ONLY_IMM = int(Opcode.UD_SEND_ONLY_WITH_IMMEDIATE)
_CNP = int(Opcode.CNP)
_CNP_PAYLOAD_BYTES = 16
_OPERATION = 0x1F
_TRANSPORT = 0xE0
_RC_TRANSPORT = int(Transport.RC)
_UC_TRANSPORT = int(Transport.UC)
_UD_TRANSPORT = int(Transport.UD)
_RC = int(QpType.RC)
_UC = int(QpType.UC)
_RTR = int(QpState.RTR)
_RTS = int(QpState.RTS)
_SQD = int(QpState.SQD)
_SQE = int(QpState.SQE)
_COMM_EST = int(EventType.COMM_EST)
_CLASS_RESERVED = int(SyndromeClass.RESERVED)
_UNSUPPORTED = -1
_CONGESTION_EXPERIENCED = 3


@kernel
def _rc_extension_bytes(operation: int) -> int:
    """Bytes between BTH and payload of an RC packet; of a reserved operation nothing is known,
    and the responder refuses it."""
    if operation in (_WRITE_FIRST, _WRITE_ONLY, _READ_REQUEST, _ATOMIC_WRITE):
        return RETH_BYTES
    if operation == _WRITE_ONLY_IMM:
        return RETH_BYTES + IMM_BYTES
    if operation in (_SEND_LAST_IMM, _SEND_ONLY_IMM, _WRITE_LAST_IMM):
        return IMM_BYTES
    if operation in (_SEND_LAST_INV, _SEND_ONLY_INV):
        return IETH_BYTES
    if operation in (_COMPARE_SWAP, _FETCH_ADD):
        return ATOMIC_ETH_BYTES
    if operation == _FLUSH:
        return FETH_BYTES + RETH_BYTES
    if operation == _ATOMIC_ACKNOWLEDGE:
        return AETH_BYTES + ATOMIC_ACK_BYTES
    if operation != _RESPONSE_MIDDLE and _RESPONSE_FIRST <= operation <= _ACKNOWLEDGE:
        return AETH_BYTES
    return 0


@kernel
def _extension_bytes(qp: Any, opcode: int) -> int:
    """Bytes between BTH and payload, or -1 when this kind of QP does not speak the opcode."""
    transport = opcode & _TRANSPORT
    operation = opcode & _OPERATION
    if qp.kind == _RC:
        return _rc_extension_bytes(operation) if transport == _RC_TRANSPORT else _UNSUPPORTED
    if qp.kind == _UC:
        if transport != _UC_TRANSPORT or operation >= _READ_REQUEST:
            return _UNSUPPORTED
        return _rc_extension_bytes(operation)
    if opcode == _UD_SEND_ONLY:
        return DETH_BYTES
    if opcode == _UD_SEND_ONLY_IMM:
        return DETH_BYTES + IMM_BYTES
    return _UNSUPPORTED


@kernel
def _icrc_holds(nic: Any, frame: Any, address: int) -> bool:
    length = frame.length - ICRC_BYTES
    sent = bytes_at(address + length, ICRC_BYTES)
    value = 0
    for i in range(ICRC_BYTES):
        value |= int(sent[i]) << (8 * i)
    return bool(value == frame_icrc(frame, address, length, nic.icrc))


@kernel
def _find_qp(nic: Any, frame: Any, qpn: int) -> int:
    """Index of the QP that this frame may speak to, or -1: number and addresses must fit."""
    index = qpn & (nic.qp_capacity - 1)
    qp = qp_at(nic.qps, index)
    if qp.in_use == 0 or qp.qpn != qpn:
        return -1
    connected = qp.kind in (_RC, _UC)
    if connected and (frame.src_hi != qp.remote_hi or frame.src_lo != qp.remote_lo):
        return -1
    if connected and (frame.dst_hi != qp.local_hi or frame.dst_lo != qp.local_lo):
        return -1
    return int(index)


@kernel
def _on_connected_request(nic: Any, qp: Any, opcode: int, address: int, length: int) -> None:
    """A request on RC or UC, in a state in which requests are served."""
    if qp.state == _RTR and qp.established == 0:
        qp.established = 1
        push_event(nic, _COMM_EST, qp.qpn)
    bth = bytes_at(address, BTH_BYTES)
    bits = (1 if (bth[8] & 0x80) != 0 else 0) | (2 if (bth[1] & 0x80) != 0 else 0)
    psn = get_be(address + 9, 3)
    operation = opcode & _OPERATION
    behind_bth = address + BTH_BYTES
    if qp.kind == _RC:
        on_rc_request(nic, qp, operation, psn, behind_bth, length, bits)
    else:
        on_uc_request(nic, qp, operation, psn, behind_bth, length, bits)


@kernel
def _is_response(qp: Any, opcode: int) -> bool:
    return bool(qp.kind == _RC and _RESPONSE_FIRST <= opcode <= _ATOMIC_ACKNOWLEDGE)


@kernel
def _on_response(nic: Any, qp: Any, opcode: int, address: int, length: int, now: int) -> None:
    psn = get_be(address + 9, 3)
    behind_bth = address + BTH_BYTES
    if opcode == _ACKNOWLEDGE:
        on_acknowledge(nic, qp, psn, get_be(behind_bth, 1), now)
    elif opcode == _ATOMIC_ACKNOWLEDGE:
        on_atomic_response(nic, qp, psn, behind_bth + AETH_BYTES, now)
    else:
        header_bytes = BTH_BYTES + _rc_extension_bytes(opcode)
        on_read_response(nic, qp, psn, (address, header_bytes, length), now)


@kernel
def _has_no_payload(qp: Any, opcode: int) -> bool:
    """Requests and answers that are all header."""
    if qp.kind != _RC:
        return False
    return opcode in (_READ_REQUEST, _FLUSH) or _ACKNOWLEDGE <= opcode <= _FETCH_ADD


@kernel
def _payload_bytes(frame: Any, address: int, extension: int) -> int:
    """Payload of a frame by its lengths; negative when they contradict each other.

    A forged pad must not make the length wrap (linux 7244491dab34), and what has no
    payload by its kind may not bring any.
    """
    pad = (int(bytes_at(address, 2)[1]) >> 4) & 3
    return int(frame.length - BTH_BYTES - extension - pad - ICRC_BYTES)


@kernel
def _says_nothing(aeth: int) -> bool:
    """Is the syndrome neither ACK nor NAK, but reserved (IBTA 1.7 section 9.7.5)?"""
    return bool((get_be(aeth, 1) >> 5) & 3 == _CLASS_RESERVED)


@kernel
def _sends(qp: Any) -> bool:
    """Is the queue pair in a state in which it has a requester?"""
    return qp.state in (_RTS, _SQD, _SQE)


@kernel
def _note_congestion(nic: Any, qp: Any, frame: Any) -> None:
    """A mark on a connection is reported to its sender; a datagram has no rate to reduce."""
    if nic.ecn != 0 and (frame.tos & 3) == _CONGESTION_EXPERIENCED:
        counters_at(nic.counters, 0).np_ecn_marked_roce_packets += 1
        qp.cnp_due = 1


@kernel
def _dispatch(nic: Any, qp: Any, frame: Any, address: int, now: int) -> None:
    """Length and state checks, then to the half of the QP that the opcode is for."""
    counters = counters_at(nic.counters, 0)
    bth = bytes_at(address, BTH_BYTES)
    opcode = int(bth[0])
    extension = _extension_bytes(qp, opcode)
    length = _payload_bytes(frame, address, extension)
    if (
        extension == _UNSUPPORTED
        or length < 0
        or (length > 0 and _has_no_payload(qp, opcode))
        or frame.length % 4 != 0
        or (int(bth[1]) & 15) != 0
        or (opcode == _ACKNOWLEDGE and _says_nothing(address + BTH_BYTES))
    ):
        counters.rx_bad_header += 1
        return
    response = _is_response(qp, opcode)
    if not _sends(qp) and (response or qp.state != _RTR):
        counters.rx_wrong_state += 1
        return
    if qp.kind != _RC and qp.kind != _UC:
        solicited = (int(bth[1]) & 0x80) != 0
        on_datagram(nic, qp, frame, opcode, address + BTH_BYTES, length, solicited)
        return
    counters.rx_accepted += 1
    _note_congestion(nic, qp, frame)
    if response:
        _on_response(nic, qp, opcode, address, length, now)
    else:
        _on_connected_request(nic, qp, opcode, address, length)


@kernel
def _on_cnp(nic: Any, qp: Any, frame: Any, now: int) -> None:
    """A congestion notification: for the rate of the QP that it names, and no PSN."""
    counters = counters_at(nic.counters, 0)
    if frame.length != BTH_BYTES + _CNP_PAYLOAD_BYTES + ICRC_BYTES:
        counters.rx_bad_header += 1
    elif not _sends(qp) and qp.state != _RTR:
        counters.rx_wrong_state += 1
    elif slow_down(qp, now):
        counters.rp_cnp_handled += 1
    else:
        counters.rp_cnp_ignored += 1


@kernel
def _same_partition(theirs: int, ours: int) -> bool:
    """Equal but for the top bit, membership; two limited members may not talk to each other
    (IBTA 1.7 section 10.9.3)."""
    return bool(((theirs ^ ours) & 0x7FFF) == 0 and ((theirs | ours) & 0x8000) != 0)


@kernel
def _receive_frame(nic: Any, frame: Any, address: int, now: int) -> None:
    counters = counters_at(nic.counters, 0)
    if frame.length < BTH_BYTES + ICRC_BYTES:
        counters.rx_runt += 1
        return
    if not _icrc_holds(nic, frame, address):
        counters.rx_icrc_encapsulated += 1
        return
    index = _find_qp(nic, frame, get_be(address + 5, 3))
    if index < 0:
        counters.rx_unknown_qp += 1
        return
    qp = qp_at(nic.qps, index)
    if not _same_partition(get_be(address + 2, 2), qp.pkey):
        counters.rx_bad_pkey += 1
    elif get_be(address, 1) == _CNP:
        _on_cnp(nic, qp, frame, now)
    else:
        _dispatch(nic, qp, frame, address, now)


@kernel
def receive_burst(nic: Any, frames: int, arena: int, count: int, now: int) -> None:
    """Take ``count`` frames described at address ``frames``, whose bytes lie at ``arena``."""
    nic.now = now
    counters = counters_at(nic.counters, 0)
    for i in range(count):
        frame = frame_at(frames, i)
        counters.rx_frames += 1
        counters.rx_bytes += frame.length
        _receive_frame(nic, frame, arena + frame.offset, now)
        end_users_of_failed_cqs(nic)
