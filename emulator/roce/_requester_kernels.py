"""The requester: turns send work requests into packets, and goes back when one is lost."""

from __future__ import annotations

from typing import Any

from emulator.roce._completion_kernels import complete_send, fail_send
from emulator.roce._emit_kernels import (
    ATOMIC_ETH_BYTES,
    BTH_BYTES,
    DETH_BYTES,
    FETH_BYTES,
    IMM_BYTES,
    RETH_BYTES,
    begin_frame,
    finish_frame,
    has_room,
    put_reth,
    redirect_frame,
    set_solicited,
)
from emulator.roce._event_kernels import push_event
from emulator.roce._memory_kernels import gather, sges_allowed
from emulator.roce._pacing_kernels import paced_until, spend_pace
from emulator.roce._psn_kernels import packets_of, psn_add, psn_diff, psn_span
from emulator.roce._window_kernels import bind_window, invalidate_window
from emulator.roce.state import MAX_MESSAGE_BYTES, counters_at, wqe_at
from emulator.wire._byte_kernels import put_be
from emulator.wire.opcode import Opcode, Transport
from kvlane.jit import kernel
from kvlane.verbs.enums import (
    AccessFlags,
    EventType,
    QpState,
    QpType,
    SendFlags,
    WcStatus,
    WrOpcode,
)

_READ = int(WrOpcode.RDMA_READ)
_WRITE = int(WrOpcode.RDMA_WRITE)
_WRITE_IMM = int(WrOpcode.RDMA_WRITE_WITH_IMM)
_SEND = int(WrOpcode.SEND)
_SEND_IMM = int(WrOpcode.SEND_WITH_IMM)
_SEND_INV = int(WrOpcode.SEND_WITH_INV)
_CMP_SWAP = int(WrOpcode.ATOMIC_CMP_AND_SWP)
_FETCH_ADD = int(WrOpcode.ATOMIC_FETCH_AND_ADD)
_ATOMIC_WRITE = int(WrOpcode.ATOMIC_WRITE)
_FLUSH = int(WrOpcode.FLUSH)
_LOCAL_INV = int(WrOpcode.LOCAL_INV)
_BIND_MW = int(WrOpcode.BIND_MW)
_INLINE = int(SendFlags.INLINE)
_FENCE = int(SendFlags.FENCE)
_SOLICITED = int(SendFlags.SOLICITED)
_LOCAL_WRITE = int(AccessFlags.LOCAL_WRITE)
_SUCCESS = int(WcStatus.SUCCESS)
_LOC_PROT_ERR = int(WcStatus.LOC_PROT_ERR)
_LOC_LEN_ERR = int(WcStatus.LOC_LEN_ERR)
_LOC_QP_OP_ERR = int(WcStatus.LOC_QP_OP_ERR)
_MW_BIND_ERR = int(WcStatus.MW_BIND_ERR)
_RETRY_EXC_ERR = int(WcStatus.RETRY_EXC_ERR)
_RC = int(QpType.RC)
_UC = int(QpType.UC)
_UD = int(QpType.UD)
_RTS = int(QpState.RTS)
_SQD = int(QpState.SQD)
_SQ_DRAINED = int(EventType.SQ_DRAINED)

_SEND_FIRST = int(Opcode.RC_SEND_FIRST)
_SEND_MIDDLE = int(Opcode.RC_SEND_MIDDLE)
_SEND_LAST = int(Opcode.RC_SEND_LAST)
_SEND_LAST_IMM = int(Opcode.RC_SEND_LAST_WITH_IMMEDIATE)
_SEND_LAST_INV = int(Opcode.RC_SEND_LAST_WITH_INVALIDATE)
_SEND_ONLY = int(Opcode.RC_SEND_ONLY)
_SEND_ONLY_IMM = int(Opcode.RC_SEND_ONLY_WITH_IMMEDIATE)
_SEND_ONLY_INV = int(Opcode.RC_SEND_ONLY_WITH_INVALIDATE)
_TO_WRITE = int(Opcode.RC_RDMA_WRITE_FIRST) - _SEND_FIRST
"""WRITE opcodes follow SEND's in the same order."""
_READ_REQUEST = int(Opcode.RC_RDMA_READ_REQUEST)
_COMPARE_SWAP = int(Opcode.RC_COMPARE_SWAP)
_FETCH_ADD_REQUEST = int(Opcode.RC_FETCH_ADD)
_ATOMIC_WRITE_REQUEST = int(Opcode.RC_ATOMIC_WRITE)
_FLUSH_REQUEST = int(Opcode.RC_FLUSH)
_UD_SEND_ONLY = int(Opcode.UD_SEND_ONLY)
_UD_SEND_ONLY_IMM = int(Opcode.UD_SEND_ONLY_WITH_IMMEDIATE)
_TO_UC = int(Transport.UC)

_WORD_BYTES = 8
_MAX_PACKETS = 1 << 23
"""Packets under way: half of the PSN space, because a responder takes the half before the PSN
that it expects for repetitions (IBTA 1.7 section 9.7.1). So many make up the longest message
at the smallest MTU, and a READ of that asks for all of them at once."""
_ACK_EVERY = 32
"""Packets between requests for an acknowledgement inside a long message."""
_MAX_BACKOFF = 4
"""A transport timer may run up to four times its interval (IBTA 1.7 section 9.9.2.1.1)."""


@kernel
def wants_response(opcode: int) -> bool:
    """Work that completes with a response of its own, not with an acknowledgement."""
    return opcode in (_READ, _CMP_SWAP, _FETCH_ADD, _ATOMIC_WRITE, _FLUSH)


@kernel
def is_local(opcode: int) -> bool:
    """Work that sends no packet."""
    return opcode in (_LOCAL_INV, _BIND_MW)


@kernel
def arm_ack_timer(qp: Any, now: int) -> None:
    """Start waiting for an acknowledgement, or stop when none has been asked for.

    A message that is still being sent, slowly perhaps, is not late (IBTA 1.7 9.9.2.1.1).
    """
    qp.ack_deadline = 0
    asked = psn_span(qp.asked_psn, qp.una_psn)
    if qp.ack_timeout_ns > 0 and 0 < asked <= psn_span(qp.tx_psn, qp.una_psn):
        backoff = min(_MAX_BACKOFF, 1 << min(8, max(0, qp.retry_count - qp.retries_left)))
        qp.ack_deadline = now + qp.ack_timeout_ns * backoff


@kernel
def note_progress(qp: Any, now: int) -> None:
    """Something was acknowledged: all retries are available again."""
    qp.retries_left = qp.retry_count
    qp.rnr_retries_left = qp.rnr_retry_count
    qp.went_back = 0
    arm_ack_timer(qp, now)


@kernel
def complete_local(nic: Any, qp: Any) -> None:
    """Complete local work that is done and has become the oldest."""
    while qp.sq_head < qp.sq_next:
        wqe = wqe_at(qp.sq, qp.sq_head % qp.sq_size)
        if not is_local(wqe.opcode) or wqe.done == 0:
            return
        complete_send(nic, qp, _SUCCESS)


@kernel
def go_back(qp: Any, psn: int) -> None:
    """Transmit again from ``psn``, which a WQE between head and next holds."""
    outstanding = 0
    read_packets = 0
    index = qp.sq_head
    while index < qp.sq_tail:
        wqe = wqe_at(qp.sq, index % qp.sq_size)
        # By offsets from its start: a long message may end more than half the PSNs away.
        if wqe.assigned == 0 or psn_diff(psn, wqe.first_psn) <= psn_diff(
            wqe.last_psn, wqe.first_psn
        ):
            break
        if wants_response(wqe.opcode):
            outstanding += 1
            read_packets += psn_diff(wqe.last_psn, wqe.first_psn) + 1
        index += 1
    qp.sq_next = index
    qp.tx_psn = psn
    qp.asked_psn = psn
    qp.ack_deadline = 0
    qp.rd_outstanding = outstanding
    qp.read_packets = read_packets
    while index < qp.sq_tail:
        wqe = wqe_at(qp.sq, index % qp.sq_size)
        if wqe.assigned == 0:
            break
        wqe.sent = max(0, psn_diff(psn, wqe.first_psn))
        index += 1


@kernel
def spend_retry(nic: Any, qp: Any) -> bool:
    """Use up one retry; False when there was none left and the queue pair has failed."""
    if qp.retries_left <= 0:
        fail_send(nic, qp, _RETRY_EXC_ERR)
        return False
    qp.retries_left -= 1
    return True


@kernel
def check_ack_timer(nic: Any, qp: Any, now: int) -> None:
    """Go back to the oldest unacknowledged packet when its time is up."""
    if qp.ack_deadline == 0 or now < qp.ack_deadline:
        return
    counters_at(nic.counters, 0).local_ack_timeout_err += 1
    if spend_retry(nic, qp):
        go_back(qp, qp.una_psn)


@kernel
def _speaks(qp: Any, opcode: int) -> bool:
    """Does this kind of queue pair carry such work (IBTA 1.7 section 9.8, table 38)?"""
    if wants_response(opcode):
        return bool(qp.kind == _RC and qp.max_rd_atomic > 0)
    if qp.kind == _UD:
        return opcode in (_SEND, _SEND_IMM)
    return bool(qp.kind == _RC or opcode != _SEND_INV)


@kernel
def _length_fits(qp: Any, wqe: Any) -> bool:
    """Can an operation of this kind be about so many bytes?"""
    if wqe.opcode in (_CMP_SWAP, _FETCH_ADD):
        return bool(wqe.length >= _WORD_BYTES)
    if wqe.opcode == _ATOMIC_WRITE:
        return bool(wqe.length == _WORD_BYTES)
    if wqe.opcode == _FLUSH:
        return bool(wqe.length == 0 and 0 <= wqe.flush_length <= MAX_MESSAGE_BYTES)
    longest = qp.mtu if qp.kind == _UD else MAX_MESSAGE_BYTES
    return bool(0 <= wqe.length <= longest)


@kernel
def _local_fault(qp: Any, wqe: Any, allowed: bool) -> int:
    """Why a work request cannot be carried out by this queue pair, as a WC status; else 0."""
    if not allowed:
        return _LOC_PROT_ERR
    if not _speaks(qp, wqe.opcode):
        return _LOC_QP_OP_ERR
    return _SUCCESS if _length_fits(qp, wqe) else _LOC_LEN_ERR


@kernel
def _assign(nic: Any, qp: Any, wqe: Any) -> bool:
    """Give a WQE its PSNs once its local memory is known to be accessible.

    False when it failed or must wait: completions are in order, so an error waits until
    it is the oldest.
    """
    access = _LOCAL_WRITE if wqe.opcode in (_READ, _CMP_SWAP, _FETCH_ADD) else 0
    inline = (wqe.send_flags & _INLINE) != 0
    fault = _local_fault(qp, wqe, inline or sges_allowed(nic, qp.pd, wqe, access))
    if fault != _SUCCESS:
        if qp.sq_next == qp.sq_head:
            fail_send(nic, qp, fault)
        return False
    packets = 0
    if not is_local(wqe.opcode):
        packets = 1 if wqe.opcode in (_CMP_SWAP, _FETCH_ADD) else packets_of(wqe.length, qp.mtu)
    wqe.first_psn = qp.next_psn
    wqe.last_psn = psn_add(qp.next_psn, packets - 1)
    wqe.sent = 0
    wqe.received = 0
    wqe.done = 0
    wqe.assigned = 1
    qp.next_psn = psn_add(wqe.last_psn, 1)
    return True


@kernel
def _may_transmit(qp: Any, wqe: Any) -> bool:
    """Window, READ limits, and room among the PSNs. A READ larger than its window still goes,
    alone."""
    if (wqe.send_flags & _FENCE) != 0 and qp.rd_outstanding > 0 and wqe.sent == 0:
        return False
    outstanding = psn_span(qp.tx_psn, qp.una_psn)
    if wants_response(wqe.opcode):
        if qp.rd_outstanding >= qp.max_rd_atomic:
            return False
        packets = psn_diff(wqe.last_psn, qp.tx_psn) + 1
        if outstanding + packets > _MAX_PACKETS:
            return False
        return bool(qp.read_packets == 0 or qp.read_packets + packets <= qp.read_window)
    return bool(outstanding < _MAX_PACKETS and outstanding - qp.read_packets < qp.window)


@kernel
def _run_local(nic: Any, qp: Any, wqe: Any) -> bool:
    """Carry out a bind or an invalidation in its turn; False when the queue pair has failed."""
    if wqe.done == 0:
        if wqe.opcode == _BIND_MW:
            done, fault = bind_window(nic, qp, wqe), _MW_BIND_ERR
        else:
            done, fault = invalidate_window(nic, qp, wqe.imm), _LOC_QP_OP_ERR
        if not done:
            if qp.sq_next == qp.sq_head:
                fail_send(nic, qp, fault)
            return False
        wqe.done = 1
    qp.sq_next += 1
    complete_local(nic, qp)
    return True


@kernel
def _emit_read_request(nic: Any, qp: Any, wqe: Any) -> None:
    """Ask for what is still missing of a READ (all of it, the first time)."""
    address = begin_frame(nic, qp, _READ_REQUEST, qp.tx_psn, True)
    put_reth(
        address + BTH_BYTES,
        wqe.remote_addr + wqe.received,
        wqe.rkey,
        wqe.length - wqe.received,
    )
    finish_frame(nic, address, BTH_BYTES + RETH_BYTES, 0)
    qp.read_packets += psn_diff(wqe.last_psn, qp.tx_psn) + 1
    qp.tx_psn = psn_add(wqe.last_psn, 1)
    qp.asked_psn = qp.tx_psn
    qp.rd_outstanding += 1
    qp.sq_next += 1


@kernel
def _emit_atomic(nic: Any, qp: Any, wqe: Any) -> None:
    """An atomic request (IBTA 1.7 section 9.3.4: VA, rkey, swap or add, compare)."""
    compares = wqe.opcode == _CMP_SWAP
    opcode = _COMPARE_SWAP if compares else _FETCH_ADD_REQUEST
    address = begin_frame(nic, qp, opcode, qp.tx_psn, True)
    header = address + BTH_BYTES
    put_be(header, wqe.remote_addr, 8)
    put_be(header + 8, wqe.rkey, 4)
    put_be(header + 12, wqe.swap if compares else wqe.compare_add, 8)
    put_be(header + 20, wqe.compare_add if compares else 0, 8)
    finish_frame(nic, address, BTH_BYTES + ATOMIC_ETH_BYTES, 0)
    _await_one_packet(qp)


@kernel
def _await_one_packet(qp: Any) -> None:
    """A request has gone whose response is one packet."""
    qp.read_packets += 1
    qp.tx_psn = psn_add(qp.tx_psn, 1)
    qp.asked_psn = qp.tx_psn
    qp.rd_outstanding += 1
    qp.sq_next += 1


@kernel
def _emit_atomic_write(nic: Any, qp: Any, wqe: Any) -> bool:
    """8 bytes that are stored at once (IBTA 1.7 annex A19); False when their key has gone."""
    address = begin_frame(nic, qp, _ATOMIC_WRITE_REQUEST, qp.tx_psn, True)
    put_reth(address + BTH_BYTES, wqe.remote_addr, wqe.rkey, _WORD_BYTES)
    header = BTH_BYTES + RETH_BYTES
    if not gather(nic, qp, wqe, 0, _WORD_BYTES, address + header):
        return False
    finish_frame(nic, address, header, _WORD_BYTES)
    _await_one_packet(qp)
    return True


@kernel
def _emit_flush(nic: Any, qp: Any, wqe: Any) -> None:
    """Ask that earlier data be where all can see it: FETH, then RETH (IBTA 1.7 annex A19)."""
    address = begin_frame(nic, qp, _FLUSH_REQUEST, qp.tx_psn, True)
    put_be(address + BTH_BYTES, wqe.feth, FETH_BYTES)
    put_reth(address + BTH_BYTES + FETH_BYTES, wqe.remote_addr, wqe.rkey, wqe.flush_length)
    finish_frame(nic, address, BTH_BYTES + FETH_BYTES + RETH_BYTES, 0)
    _await_one_packet(qp)


@kernel
def _data_opcode(qp: Any, wqe: Any, first: bool, last: bool) -> int:
    """The opcode of one packet of a SEND or WRITE."""
    with_imm = wqe.opcode in (_SEND_IMM, _WRITE_IMM)
    if first and last:
        opcode = _SEND_ONLY_IMM if with_imm else _SEND_ONLY
        if wqe.opcode == _SEND_INV:
            opcode = _SEND_ONLY_INV
    elif first:
        opcode = _SEND_FIRST
    elif last:
        opcode = _SEND_LAST_IMM if with_imm else _SEND_LAST
        if wqe.opcode == _SEND_INV:
            opcode = _SEND_LAST_INV
    else:
        opcode = _SEND_MIDDLE
    if wqe.opcode in (_WRITE, _WRITE_IMM):
        opcode += _TO_WRITE
    if qp.kind == _UC:
        opcode += _TO_UC
    return opcode


@kernel
def _emit_data(nic: Any, qp: Any, wqe: Any) -> bool:
    """The next packet of a SEND or WRITE; False when its local key has gone."""
    offset = wqe.sent * qp.mtu
    payload = min(qp.mtu, wqe.length - offset)
    first = wqe.sent == 0
    last = qp.tx_psn == wqe.last_psn
    opcode = _data_opcode(qp, wqe, first, last)
    closes_window = psn_span(qp.tx_psn, qp.una_psn) - qp.read_packets + 1 >= qp.window
    ack_request = qp.kind == _RC and (last or closes_window or qp.tx_psn % _ACK_EVERY == 0)
    address = begin_frame(nic, qp, opcode, qp.tx_psn, ack_request)
    header = BTH_BYTES
    if first and wqe.opcode in (_WRITE, _WRITE_IMM):
        put_reth(address + header, wqe.remote_addr, wqe.rkey, wqe.length)
        header += RETH_BYTES
    if last and wqe.opcode in (_SEND_IMM, _WRITE_IMM, _SEND_INV):
        put_be(address + header, wqe.imm, IMM_BYTES)
        header += IMM_BYTES
    if last and (wqe.send_flags & _SOLICITED) != 0:
        set_solicited(address)
    if not gather(nic, qp, wqe, offset, payload, address + header):
        return False
    finish_frame(nic, address, header, payload)
    wqe.sent += 1
    qp.tx_psn = psn_add(qp.tx_psn, 1)
    if ack_request:
        qp.asked_psn = qp.tx_psn
    if last:
        qp.sq_next += 1
    return True


@kernel
def _emit_datagram(nic: Any, qp: Any, wqe: Any) -> bool:
    """A UD message: one packet to where the work request says; complete once it is sent."""
    with_imm = wqe.opcode == _SEND_IMM
    opcode = _UD_SEND_ONLY_IMM if with_imm else _UD_SEND_ONLY
    address = begin_frame(nic, qp, opcode, qp.tx_psn, False)
    redirect_frame(nic, qp, address, wqe)
    header = BTH_BYTES
    # The sender's Q_Key when the work request's has its high bit set (IBTA 1.7 10.2.5).
    qkey = qp.qkey if (wqe.ud_qkey >> 31) & 1 else wqe.ud_qkey
    put_be(address + header, qkey, 4)
    put_be(address + header + 4, qp.qpn, 4)
    header += DETH_BYTES
    if with_imm:
        put_be(address + header, wqe.imm, IMM_BYTES)
        header += IMM_BYTES
    if (wqe.send_flags & _SOLICITED) != 0:
        set_solicited(address)
    if not gather(nic, qp, wqe, 0, wqe.length, address + header):
        return False
    finish_frame(nic, address, header, wqe.length)
    qp.tx_psn = psn_add(qp.tx_psn, 1)
    qp.sq_next += 1
    return True


@kernel
def _emit(nic: Any, qp: Any, wqe: Any) -> bool:
    """The next packet of a work request, by its kind; False when its memory has gone.

    Like every error this waits until it is the oldest. The wait has a timer: the last packet
    of whatever is older has asked for its acknowledgement, or is a request for a response.
    """
    if wqe.opcode == _READ:
        _emit_read_request(nic, qp, wqe)
        return True
    if wqe.opcode in (_CMP_SWAP, _FETCH_ADD):
        _emit_atomic(nic, qp, wqe)
        return True
    if wqe.opcode == _FLUSH:
        _emit_flush(nic, qp, wqe)
        return True
    if wqe.opcode == _ATOMIC_WRITE:
        sent = _emit_atomic_write(nic, qp, wqe)
    else:
        sent = _emit_datagram(nic, qp, wqe) if qp.kind == _UD else _emit_data(nic, qp, wqe)
    if not sent:
        # Whatever of it is under way, its memory is gone: this ends the queue pair.
        if qp.sq_next == qp.sq_head:
            fail_send(nic, qp, _LOC_PROT_ERR)
        return False
    if qp.kind != _RC:
        qp.una_psn = qp.tx_psn  # nobody acknowledges it: sent is done
        if qp.sq_next > qp.sq_head:
            complete_send(nic, qp, _SUCCESS)
    return True


@kernel
def is_draining(qp: Any) -> bool:
    """In SQD: is begun work left (IBTA 1.7 section 10.3.1.5)?

    What has gone out does not tell: after going back, and while it waits for a receiver that
    is not ready, for instance, nothing is under way.
    """
    if qp.state != _SQD or qp.sq_head >= qp.sq_tail:
        return False
    return bool(wqe_at(qp.sq, qp.sq_head % qp.sq_size).assigned != 0)


@kernel
def _tell_drained(nic: Any, qp: Any) -> None:
    """In SQD, once no begun work is left, the consumer is told (IBTA 1.7 10.3.1.5)."""
    if qp.state != _SQD or qp.drain_notify == 0 or is_draining(qp):
        return
    qp.drain_notify = 0
    push_event(nic, _SQ_DRAINED, qp.qpn)


@kernel
def transmit_requests(nic: Any, qp: Any, now: int, quota: int) -> int:
    """Fill the burst with up to ``quota`` request packets; return how many."""
    if qp.rnr_deadline != 0:
        if now < qp.rnr_deadline:
            return 0
        qp.rnr_deadline = 0
    emitted = 0
    while emitted < quota and qp.sq_next < qp.sq_tail and has_room(nic):
        wqe = wqe_at(qp.sq, qp.sq_next % qp.sq_size)
        if qp.state == _SQD and wqe.assigned == 0:
            break
        if now < paced_until(qp):
            qp.pace_wait = paced_until(qp)
            break
        if wqe.assigned == 0 and not _assign(nic, qp, wqe):
            break
        if is_local(wqe.opcode):
            if ((wqe.send_flags & _FENCE) != 0 and qp.rd_outstanding > 0) or not _run_local(
                nic, qp, wqe
            ):
                break
            continue
        if not _may_transmit(qp, wqe):
            break
        fresh = qp.tx_psn == qp.high_psn
        before = nic.tx_bytes
        if not _emit(nic, qp, wqe):
            break
        spend_pace(qp, nic.tx_bytes - before, now)
        if fresh:
            qp.high_psn = qp.tx_psn
        else:
            counters_at(nic.counters, 0).retransmitted_packets += 1
        emitted += 1
    if emitted > 0 and qp.ack_deadline == 0:
        arm_ack_timer(qp, now)
    _tell_drained(nic, qp)
    return emitted
