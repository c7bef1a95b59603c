"""The responder: executes the peer's requests in PSN order, and says what it owes them."""

from __future__ import annotations

from typing import Any

from emulator.roce._atomic_kernels import execute_atomic, kept_result
from emulator.roce._byte_kernels import get_be, get_be64
from emulator.roce._completion_kernels import (
    WC_WITH_IMM,
    WC_WITH_INV,
    complete_recv,
    enter_error,
    wake_solicited,
)
from emulator.roce._emit_kernels import IMM_BYTES, RETH_BYTES
from emulator.roce._event_kernels import push_event
from emulator.roce._memory_kernels import host_address, scatter, sges_allowed
from emulator.roce._psn_kernels import packets_of, psn_add, psn_diff
from emulator.roce._receive_queue_kernels import take_receive
from emulator.roce._window_kernels import invalidate_window
from emulator.roce.state import (
    ANSWER_ACK,
    ANSWER_NAK,
    ANSWER_NONE,
    INBOUND_NONE,
    INBOUND_SEND,
    INBOUND_SKIP,
    INBOUND_WRITE,
    JOB_BYTES,
    MAX_RD_ATOMIC,
    MAX_READ_JOBS,
    atomic_result_at,
    counters_at,
    job_at,
    rqe_at,
)
from emulator.wire.aeth import UNLIMITED_CREDITS, NakCode
from emulator.wire.opcode import Opcode
from kvlane.jit import kernel
from kvlane.rawmem import copy
from kvlane.verbs.enums import AccessFlags, EventType, QpType, WcOpcode, WcStatus

_SEND_FIRST = int(Opcode.RC_SEND_FIRST)
_SEND_MIDDLE = int(Opcode.RC_SEND_MIDDLE)
_SEND_LAST = int(Opcode.RC_SEND_LAST)
_SEND_LAST_IMM = int(Opcode.RC_SEND_LAST_WITH_IMMEDIATE)
_SEND_LAST_INV = int(Opcode.RC_SEND_LAST_WITH_INVALIDATE)
_SEND_ONLY = int(Opcode.RC_SEND_ONLY)
_SEND_ONLY_IMM = int(Opcode.RC_SEND_ONLY_WITH_IMMEDIATE)
_SEND_ONLY_INV = int(Opcode.RC_SEND_ONLY_WITH_INVALIDATE)
_WRITE_FIRST = int(Opcode.RC_RDMA_WRITE_FIRST)
_READ_REQUEST = int(Opcode.RC_RDMA_READ_REQUEST)
_COMPARE_SWAP = int(Opcode.RC_COMPARE_SWAP)
_FETCH_ADD = int(Opcode.RC_FETCH_ADD)
_OPERATION = 0x1F

_NAK_CLASS = 0x60
_RNR_CLASS = 0x20
_NAK_PSN = _NAK_CLASS | int(NakCode.PSN_SEQUENCE_ERROR)
_NAK_INVALID = _NAK_CLASS | int(NakCode.INVALID_REQUEST)
_NAK_ACCESS = _NAK_CLASS | int(NakCode.REMOTE_ACCESS_ERROR)
_NAK_OPERATION = _NAK_CLASS | int(NakCode.REMOTE_OPERATIONAL_ERROR)

_RC = int(QpType.RC)
_LOCAL_WRITE = int(AccessFlags.LOCAL_WRITE)
_REMOTE_WRITE = int(AccessFlags.REMOTE_WRITE)
_REMOTE_READ = int(AccessFlags.REMOTE_READ)
_REMOTE_ATOMIC = int(AccessFlags.REMOTE_ATOMIC)
_SUCCESS = int(WcStatus.SUCCESS)
_LOC_LEN_ERR = int(WcStatus.LOC_LEN_ERR)
_LOC_PROT_ERR = int(WcStatus.LOC_PROT_ERR)
_RECV = int(WcOpcode.RECV)
_RECV_WRITE_IMM = int(WcOpcode.RECV_RDMA_WITH_IMM)
_QP_ACCESS_ERR = int(EventType.QP_ACCESS_ERR)
_QP_REQ_ERR = int(EventType.QP_REQ_ERR)

_MAX_MESSAGE_BYTES = 1 << 31
"""IBTA 1.7 section 9.7.1.5.1 and table 45."""
_WORD_BYTES = 8


@kernel
def owe_ack(qp: Any, psn: int) -> None:
    """An acknowledgement is due; later ones replace it, because they cover it."""
    if qp.kind == _RC and qp.answer != ANSWER_NAK:
        qp.answer = ANSWER_ACK
        qp.answer_psn = psn
        qp.answer_syndrome = UNLIMITED_CREDITS


@kernel
def _owe_nak(qp: Any, psn: int, syndrome: int) -> None:
    """A negative acknowledgement is due; after it, silence until the expected PSN."""
    qp.answer = ANSWER_NAK
    qp.answer_psn = psn
    qp.answer_syndrome = syndrome
    qp.nak_sent = 1


@kernel
def _refuse(nic: Any, qp: Any, psn: int, syndrome: int) -> None:
    """A faulty request (IBTA 1.7 section 9.9.3).

    RC, class C: NAK, and this queue pair is in error. UC, class D: the rest of the message
    is dropped, and nobody is told.
    """
    counters = counters_at(nic.counters, 0)
    if syndrome == _NAK_ACCESS:
        counters.resp_remote_access_errors += 1
    elif syndrome == _NAK_INVALID:
        counters.resp_invalid_request += 1
    if qp.kind != _RC:
        qp.inbound = INBOUND_SKIP
        return
    _owe_nak(qp, psn, syndrome)
    push_event(nic, _QP_ACCESS_ERR if syndrome == _NAK_ACCESS else _QP_REQ_ERR, qp.qpn)
    enter_error(nic, qp)


@kernel
def _kind(operation: int) -> int:
    writes = _WRITE_FIRST <= operation < _READ_REQUEST
    return INBOUND_WRITE if writes else INBOUND_SEND


@kernel
def _role(operation: int) -> int:
    """The SEND operation with the same place in its message and the same extension."""
    if operation == _SEND_LAST_INV:
        return _SEND_LAST
    if operation == _SEND_ONLY_INV:
        return _SEND_ONLY
    return operation if operation < _WRITE_FIRST else operation - _WRITE_FIRST + _SEND_FIRST


@kernel
def is_first(operation: int) -> bool:
    """Does this packet begin a message?"""
    return _role(operation) in (_SEND_FIRST, _SEND_ONLY, _SEND_ONLY_IMM)


@kernel
def _in_sequence(qp: Any, operation: int) -> bool:
    """May this packet follow the one before it (IBTA 1.7 section 9.7.4.1.2)?"""
    if is_first(operation):
        return bool(qp.inbound == INBOUND_NONE)
    return bool(qp.inbound == _kind(operation))


@kernel
def _length_fits(qp: Any, role: int, length: int) -> bool:
    """Payload of a packet by its place in the message (IBTA 1.7 C9-92 to C9-94)."""
    if role in (_SEND_FIRST, _SEND_MIDDLE):
        return bool(length == qp.mtu)
    if role in (_SEND_LAST, _SEND_LAST_IMM):
        return bool(0 < length <= qp.mtu)
    return bool(length <= qp.mtu)


@kernel
def _not_ready(nic: Any, qp: Any, psn: int) -> None:
    """No receive is posted. RC: RNR NAK, and the requester comes again; UC: dropped."""
    counters = counters_at(nic.counters, 0)
    if qp.kind != _RC:
        counters.rx_no_receive += 1
        qp.inbound = INBOUND_SKIP
        return
    counters.rnr_nak_sent += 1
    _owe_nak(qp, psn, _RNR_CLASS | (qp.min_rnr_timer & 31))


@kernel
def _receive_fault(nic: Any, qp: Any, psn: int, status: int, syndrome: int) -> None:
    """The posted receive cannot take the message.

    UC drops what is too long, and keeps the receive; a receive that cannot be written is the
    owner's fault and ends either kind of queue pair.
    """
    if qp.kind == _RC or status == _LOC_PROT_ERR:
        complete_recv(nic, qp, status, _RECV, 0)
    _refuse(nic, qp, psn, syndrome)
    if qp.kind != _RC and status == _LOC_PROT_ERR:
        enter_error(nic, qp)


@kernel
def _take_send(nic: Any, qp: Any, psn: int, first: bool, payload: int, length: int) -> bool:
    """Scatter one packet of a SEND into its receive; False when it was refused."""
    if first:
        if not take_receive(nic, qp):
            _not_ready(nic, qp, psn)
            return False
        qp.recv_offset = 0
        if not sges_allowed(nic, qp, rqe_at(qp.inbox, 0), _LOCAL_WRITE):
            _receive_fault(nic, qp, psn, _LOC_PROT_ERR, _NAK_OPERATION)
            return False
    rqe = rqe_at(qp.inbox, 0)
    if qp.recv_offset + length > rqe.length:
        counters_at(nic.counters, 0).resp_local_length_error += 1
        _receive_fault(nic, qp, psn, _LOC_LEN_ERR, _NAK_INVALID)
        return False
    if not scatter(nic, qp, rqe, qp.recv_offset, length, payload, _LOCAL_WRITE):
        _receive_fault(nic, qp, psn, _LOC_PROT_ERR, _NAK_OPERATION)
        return False
    qp.recv_offset += length
    return True


@kernel
def _start_write(nic: Any, qp: Any, psn: int, reth: int) -> bool:
    """Check a WRITE's RETH and remember where it goes; False when it was refused."""
    qp.write_addr = get_be64(reth)
    qp.write_rkey = get_be(reth + 8, 4)
    qp.write_left = get_be(reth + 12, 4)
    if qp.write_left > _MAX_MESSAGE_BYTES:
        _refuse(nic, qp, psn, _NAK_INVALID)
        return False
    # A zero-length WRITE checks no key (IBTA 1.7 C9-88).
    if qp.write_left > 0 and (
        (qp.access & _REMOTE_WRITE) == 0
        or host_address(nic, qp, qp.write_rkey, qp.write_addr, qp.write_left, _REMOTE_WRITE) == 0
    ):
        _refuse(nic, qp, psn, _NAK_ACCESS)
        return False
    return True


@kernel
def _take_write(nic: Any, qp: Any, psn: int, last: bool, payload: int, length: int) -> bool:
    """Copy one packet of a WRITE to its place; False when it was refused."""
    if length > qp.write_left or (last and length != qp.write_left):
        _refuse(nic, qp, psn, _NAK_INVALID)
        return False
    if length > 0:
        # The region may have been deregistered since the first packet.
        target = host_address(nic, qp, qp.write_rkey, qp.write_addr, length, _REMOTE_WRITE)
        if target == 0:
            _refuse(nic, qp, psn, _NAK_ACCESS)
            return False
        copy(target, payload, length)
        qp.write_addr += length
        qp.write_left -= length
    return True


@kernel
def _finish_message(nic: Any, qp: Any, operation: int, extra: int, solicited: bool) -> None:
    """After the last packet: complete the receive that the message has taken, if any."""
    with_imm = _role(operation) in (_SEND_LAST_IMM, _SEND_ONLY_IMM)
    if _kind(operation) == INBOUND_SEND:
        cqe = complete_recv(nic, qp, _SUCCESS, _RECV, qp.recv_offset)
    elif with_imm:
        cqe = complete_recv(nic, qp, _SUCCESS, _RECV_WRITE_IMM, qp.recv_offset)
    else:
        return
    if with_imm:
        cqe.imm = get_be(extra, IMM_BYTES)
        cqe.wc_flags = WC_WITH_IMM
    elif operation in (_SEND_LAST_INV, _SEND_ONLY_INV):
        cqe.imm = get_be(extra, IMM_BYTES)
        cqe.wc_flags = WC_WITH_INV
    if solicited:
        wake_solicited(nic, qp.recv_cq)


@kernel
def _prepare_write(nic: Any, qp: Any, psn: int, operation: int, reth: int) -> bool:
    """What a WRITE needs before its bytes are taken: a receive for an immediate, its RETH."""
    if _role(operation) in (_SEND_LAST_IMM, _SEND_ONLY_IMM) and not take_receive(nic, qp):
        _not_ready(nic, qp, psn)
        return False
    if is_first(operation):
        if not _start_write(nic, qp, psn, reth):
            return False
        qp.recv_offset = qp.write_left
    return True


@kernel
def take_data(
    nic: Any, qp: Any, operation: int, psn: int, extension: int, length: int, solicited: bool
) -> bool:
    """Execute one in-order packet of a SEND or WRITE; False when it was refused.

    ``extension`` is the address behind the BTH, ``length`` the payload's.
    """
    role = _role(operation)
    kind = _kind(operation)
    if not _in_sequence(qp, operation) or not _length_fits(qp, role, length):
        _refuse(nic, qp, psn, _NAK_INVALID)
        return False
    first = is_first(operation)
    last = role not in (_SEND_FIRST, _SEND_MIDDLE)
    extra = extension
    if kind == INBOUND_WRITE and first:
        extra += RETH_BYTES
    payload = extra
    invalidates = operation in (_SEND_LAST_INV, _SEND_ONLY_INV)
    if invalidates or role in (_SEND_LAST_IMM, _SEND_ONLY_IMM):
        payload += IMM_BYTES
    if kind == INBOUND_SEND:
        if not _take_send(nic, qp, psn, first, payload, length):
            return False
    else:
        if not _prepare_write(nic, qp, psn, operation, extension):
            return False
        if not _take_write(nic, qp, psn, last, payload, length):
            return False
    if last:
        if invalidates and not invalidate_window(nic, qp, get_be(extra, IMM_BYTES)):
            _refuse(nic, qp, psn, _NAK_ACCESS)
            return False
        _finish_message(nic, qp, operation, extra, solicited)
    qp.inbound = INBOUND_NONE if last else kind
    return True


@kernel
def _may_queue(qp: Any, repeated: bool) -> bool:
    """Is there a place in the job ring for one more such request?"""
    if repeated:
        repeated_jobs = qp.job_tail - qp.job_head - qp.new_jobs
        return bool(repeated_jobs < MAX_READ_JOBS - MAX_RD_ATOMIC)
    return bool(qp.new_jobs < qp.max_dest_rd_atomic)


@kernel
def _new_job(qp: Any, psn: int, repeated: bool) -> Any:
    """A place in the job ring, in the order of PSNs: a repeated request goes before what
    the requester cannot use without it. The caller knows that there is one."""
    index = qp.job_tail
    while repeated and index > qp.job_head:
        if psn_diff(job_at(qp.jobs, (index - 1) % MAX_READ_JOBS).psn, psn) <= 0:
            break
        target = qp.jobs + index % MAX_READ_JOBS * JOB_BYTES
        copy(target, qp.jobs + (index - 1) % MAX_READ_JOBS * JOB_BYTES, JOB_BYTES)
        index -= 1
    qp.job_tail += 1
    if not repeated:
        qp.new_jobs += 1
    job = job_at(qp.jobs, index % MAX_READ_JOBS)
    job.repeated = 1 if repeated else 0
    job.psn = psn
    job.started = 0
    return job


@kernel
def _queue_read(qp: Any, psn: int, addr: int, rkey: int, length: int, repeated: bool) -> bool:
    """Remember to answer a READ; a repeated one takes the place of what it repeats."""
    packets = packets_of(length, qp.mtu)
    index = qp.job_head
    while index < qp.job_tail:
        job = job_at(qp.jobs, index % MAX_READ_JOBS)
        if psn_diff(psn, job.last_psn) <= 0 and psn_diff(psn_add(psn, packets - 1), job.psn) >= 0:
            break
        index += 1
    if index < qp.job_tail:
        job = job_at(qp.jobs, index % MAX_READ_JOBS)
    elif _may_queue(qp, repeated):
        job = _new_job(qp, psn, repeated)
    else:
        return False
    job.psn = psn
    job.last_psn = psn_add(psn, packets - 1)
    job.addr = addr
    job.rkey = rkey
    job.left = length
    job.started = 0
    job.atomic = 0
    return True


@kernel
def _refuse_repeated(qp: Any, psn: int, syndrome: int) -> None:
    """A repeated READ whose region has gone. The connection lives on: the repetition may be
    the network's, and a requester that has its data takes the NAK for a ghost."""
    if qp.answer == ANSWER_NONE and qp.job_head == qp.job_tail:
        qp.answer = ANSWER_NAK
        qp.answer_psn = psn
        qp.answer_syndrome = syndrome


@kernel
def take_read(nic: Any, qp: Any, psn: int, reth: int, duplicate: bool) -> int:
    """Accept a READ request; return the PSNs it consumes, 0 when it was refused.

    A repeated request is checked like a new one: its region may be gone by now.
    """
    addr = get_be64(reth)
    rkey = get_be(reth + 8, 4)
    length = get_be(reth + 12, 4)
    packets = packets_of(length, qp.mtu)
    if duplicate and packets > psn_diff(qp.expected_psn, psn):
        return 0  # asks for more than it once did: not a repetition, dropped
    if length > _MAX_MESSAGE_BYTES or (not duplicate and qp.inbound != INBOUND_NONE):
        _refuse(nic, qp, psn, _NAK_INVALID)
        return 0
    if length > 0 and (
        (qp.access & _REMOTE_READ) == 0
        or host_address(nic, qp, rkey, addr, length, _REMOTE_READ) == 0
    ):
        if duplicate:
            _refuse_repeated(qp, psn, _NAK_ACCESS)
        else:
            _refuse(nic, qp, psn, _NAK_ACCESS)
        return 0
    if not _queue_read(qp, psn, addr, rkey, length, duplicate):
        if not duplicate:
            _refuse(nic, qp, psn, _NAK_INVALID)
        return 0
    if not duplicate and qp.answer == ANSWER_ACK:
        qp.answer = ANSWER_NONE  # the READ's response acknowledges what came before it
    return packets


@kernel
def _queue_atomic(qp: Any, psn: int, value: int, repeated: bool) -> None:
    """Remember to answer an atomic with its original value; dropped when there is no place.

    One whose answer is still to come is answered by that alone. Answered twice, the first
    answer would let the requester go on while the second still takes a new request's place.
    """
    for index in range(qp.job_head, qp.job_tail):
        job = job_at(qp.jobs, index % MAX_READ_JOBS)
        if job.atomic != 0 and job.psn == psn:
            return
    if not _may_queue(qp, repeated):
        return
    job = _new_job(qp, psn, repeated)
    job.last_psn = psn
    job.left = 0
    job.atomic = 1
    job.value = value


@kernel
def take_atomic(nic: Any, qp: Any, operation: int, psn: int, header: int) -> bool:
    """Execute an atomic, exactly once; False when it was refused (IBTA 1.7 section 9.4.5)."""
    addr = get_be64(header)
    if qp.inbound != INBOUND_NONE or addr % _WORD_BYTES != 0:
        _refuse(nic, qp, psn, _NAK_INVALID)
        return False
    target = 0
    if (qp.access & _REMOTE_ATOMIC) != 0:
        target = host_address(nic, qp, get_be(header + 8, 4), addr, _WORD_BYTES, _REMOTE_ATOMIC)
    if target == 0:
        _refuse(nic, qp, psn, _NAK_ACCESS)
        return False
    if not _may_queue(qp, False):
        _refuse(nic, qp, psn, _NAK_INVALID)
        return False
    value = execute_atomic(
        qp, psn, target, operation == _COMPARE_SWAP, get_be64(header + 12), get_be64(header + 20)
    )
    _queue_atomic(qp, psn, value, False)
    if qp.answer == ANSWER_ACK:
        qp.answer = ANSWER_NONE
    return True


@kernel
def _on_duplicate(nic: Any, qp: Any, operation: int, psn: int, extension: int) -> None:
    """A request that was executed before (IBTA 1.7 section 9.7.5.1.4, table 51)."""
    counters_at(nic.counters, 0).duplicate_request += 1
    if operation == _READ_REQUEST:
        take_read(nic, qp, psn, extension, True)
    elif operation in (_COMPARE_SWAP, _FETCH_ADD):
        # The kept value, never a second execution; one that is not kept any more is dropped.
        slot = kept_result(qp, psn)
        if slot >= 0:
            _queue_atomic(qp, psn, atomic_result_at(qp.atomics, slot).value, True)
    else:
        # All that is executed is acknowledged, not just the repeated packet.
        owe_ack(qp, psn_add(qp.expected_psn, -1))


@kernel
def _order_holds(nic: Any, qp: Any, operation: int, psn: int, extension: int) -> bool:
    """RC: is this the expected packet? If not, it is dealt with here."""
    ahead = psn_diff(psn, qp.expected_psn)
    if ahead < 0:
        _on_duplicate(nic, qp, operation, psn, extension)
        return False
    if ahead > 0:
        counters_at(nic.counters, 0).out_of_sequence += 1
        if qp.nak_sent == 0 or psn_diff(psn, qp.ahead_psn) > 0:
            qp.ahead_psn = psn
        if qp.nak_sent == 0:
            _owe_nak(qp, qp.expected_psn, _NAK_PSN)
        return False
    return True


@kernel
def _gap_closes(qp: Any) -> bool:
    """The missing packet is here; True when what came too early has not been asked for again.

    A NAK that is not sent yet would ask for the packet that has just arrived.
    """
    if qp.nak_sent == 0:
        return False
    qp.nak_sent = 0
    if qp.answer != ANSWER_NAK:
        return False
    qp.answer = ANSWER_NONE
    return bool(qp.answer_syndrome == _NAK_PSN)


@kernel
def _ask_for_dropped(qp: Any) -> None:
    """Ask for the packets that came too early, were dropped, and nobody will send by himself."""
    if qp.kind == _RC and psn_diff(qp.ahead_psn, qp.expected_psn) >= 0:
        _owe_nak(qp, qp.expected_psn, _NAK_PSN)


@kernel
def _execute(
    nic: Any, qp: Any, operation: int, psn: int, extension: int, length: int, bits: int
) -> bool:
    """Carry out the expected request packet; False when it was refused."""
    counters = counters_at(nic.counters, 0)
    packets = 1
    if operation == _READ_REQUEST:
        counters.rx_read_requests += 1
        packets = take_read(nic, qp, psn, extension, False)
        if packets == 0:
            return False
    elif operation in (_COMPARE_SWAP, _FETCH_ADD):
        counters.rx_atomic_requests += 1
        if not take_atomic(nic, qp, operation, psn, extension):
            return False
    else:
        if _kind(operation) == INBOUND_WRITE and is_first(operation):
            counters.rx_write_requests += 1
        if not take_data(nic, qp, operation, psn, extension, length, (bits & 2) != 0):
            return False
        if (bits & 1) != 0 or qp.inbound == INBOUND_NONE:
            owe_ack(qp, psn)
    qp.expected_psn = psn_add(psn, packets)
    if qp.inbound == INBOUND_NONE:
        qp.msn = (qp.msn + 1) & 0xFFFFFF
    return True


@kernel
def on_rc_request(
    nic: Any, qp: Any, operation: int, psn: int, extension: int, length: int, bits: int
) -> None:
    """A request packet has passed the header checks: order first, then the rest.

    ``bits``: 1 an acknowledgement is asked for, 2 the event is solicited.
    """
    if not _order_holds(nic, qp, operation, psn, extension):
        return
    unasked = _gap_closes(qp)
    if _execute(nic, qp, operation, psn, extension, length, bits) and unasked:
        _ask_for_dropped(qp)


@kernel
def on_uc_request(
    nic: Any, qp: Any, operation: int, psn: int, extension: int, length: int, bits: int
) -> None:
    """UC: a gap costs the message it falls into, and nothing else (IBTA 1.7 section 9.8.2)."""
    gap = psn != qp.expected_psn
    qp.expected_psn = psn_add(psn, 1)
    if gap and qp.inbound in (INBOUND_SEND, INBOUND_WRITE):
        counters_at(nic.counters, 0).rx_uc_gap += 1
    if is_first(operation):
        qp.inbound = INBOUND_NONE  # whatever was half received is given up
    elif gap or qp.inbound not in (INBOUND_SEND, INBOUND_WRITE):
        qp.inbound = INBOUND_SKIP
        return
    take_data(nic, qp, operation, psn, extension, length, (bits & 2) != 0)
