"""The completer: what acknowledgements and responses mean for the send queue."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.roce._completion_kernels import complete_send, fail_send
from emulator.roce._memory_kernels import scatter
from emulator.roce._psn_kernels import psn_add, psn_diff, psn_span
from emulator.roce._requester_kernels import (
    complete_local,
    go_back,
    is_local,
    note_progress,
    spend_retry,
    wants_response,
)
from emulator.roce._word_kernels import store_word
from emulator.roce.state import counters_at, wqe_at
from emulator.wire._byte_kernels import get_be64
from emulator.wire._icrc_kernels import continued_sum
from emulator.wire.aeth import RNR_TIMER_NS, NakCode, SyndromeClass
from kvlane.atomics import full_fence
from kvlane.jit import kernel
from kvlane.rawmem import array_accessor
from kvlane.verbs.enums import AccessFlags, QpState, WcStatus, WrOpcode

_READ = int(WrOpcode.RDMA_READ)
_CMP_SWAP = int(WrOpcode.ATOMIC_CMP_AND_SWP)
_FETCH_ADD = int(WrOpcode.ATOMIC_FETCH_AND_ADD)
_ERR = int(QpState.ERR)
_LOCAL_WRITE = int(AccessFlags.LOCAL_WRITE)
_SUCCESS = int(WcStatus.SUCCESS)
_LOC_PROT_ERR = int(WcStatus.LOC_PROT_ERR)
_BAD_RESP = int(WcStatus.BAD_RESP_ERR)
_REM_INV_REQ = int(WcStatus.REM_INV_REQ_ERR)
_REM_ACCESS = int(WcStatus.REM_ACCESS_ERR)
_REM_OP = int(WcStatus.REM_OP_ERR)
_RNR_EXCEEDED = int(WcStatus.RNR_RETRY_EXC_ERR)

_CLASS_ACK = int(SyndromeClass.ACK)
_CLASS_RNR = int(SyndromeClass.RNR_NAK)
_CLASS_NAK = int(SyndromeClass.NAK)
_NAK_PSN = int(NakCode.PSN_SEQUENCE_ERROR)
_NAK_INVALID_REQUEST = int(NakCode.INVALID_REQUEST)
_NAK_REMOTE_ACCESS = int(NakCode.REMOTE_ACCESS_ERROR)
_FOR_EVER = 7
"""``rnr_retry`` of 7 never runs out (IBTA 1.7 section 9.7.5.2.8)."""

_RNR_NS = np.array(RNR_TIMER_NS, np.int64)
_WORD_BYTES = 8

_sums_at = array_accessor(np.dtype(np.uint32))


@kernel
def _skip_to_head(nic: Any, qp: Any) -> None:
    """What was being sent again has been acknowledged meanwhile: go on after it."""
    if qp.sq_next < qp.sq_head:
        qp.sq_next = qp.sq_head
    complete_local(nic, qp)
    # Is it behind? As many as half of the PSNs may be under way, so a difference cannot tell.
    if psn_span(qp.tx_psn, qp.una_psn) > psn_span(qp.high_psn, qp.una_psn):
        qp.tx_psn = qp.una_psn
        if qp.sq_next < qp.sq_tail:
            wqe = wqe_at(qp.sq, qp.sq_next % qp.sq_size)
            if wqe.assigned != 0:
                wqe.sent = max(0, psn_diff(qp.una_psn, wqe.first_psn))


@kernel
def ack_through(nic: Any, qp: Any, psn: int, now: int) -> bool:
    """Complete everything up to ``psn``; False when a READ or atomic lacks its response.

    An acknowledgement covers all earlier requests (IBTA 1.7 section 9.7.5.1.1), except
    that those are complete only with their data.
    """
    before = qp.una_psn
    whole = True
    # Counted from the oldest unacknowledged: messages may be as long as half of the PSNs, and
    # then two of them cannot be compared by their first ones.
    covered = psn_span(psn, qp.una_psn) + 1
    while qp.sq_head < qp.sq_tail:
        wqe = wqe_at(qp.sq, qp.sq_head % qp.sq_size)
        if wqe.assigned == 0:
            break
        if is_local(wqe.opcode):
            if wqe.done == 0:
                break
            complete_send(nic, qp, _SUCCESS)
            continue
        if covered == 0:
            break
        if wants_response(wqe.opcode):
            whole = False
            break
        outstanding = psn_span(wqe.last_psn, qp.una_psn) + 1
        if outstanding > covered:
            qp.una_psn = psn_add(psn, 1)
            break
        covered -= outstanding
        qp.una_psn = psn_add(wqe.last_psn, 1)
        complete_send(nic, qp, _SUCCESS)
    _skip_to_head(nic, qp)
    if qp.una_psn != before:
        note_progress(qp, now)
    return whole


@kernel
def _implied_nak(nic: Any, qp: Any) -> None:
    """A response is missing: ask again, once until something arrives."""
    if qp.went_back != 0:
        return
    counters_at(nic.counters, 0).implied_nak_seq_err += 1
    if spend_retry(nic, qp):
        go_back(qp, qp.una_psn)
        qp.went_back = 1


@kernel
def _on_rnr_nak(nic: Any, qp: Any, timer_code: int, now: int) -> None:
    """The peer has no receive posted: wait as long as it says, then send again."""
    counters_at(nic.counters, 0).rnr_nak_retry_err += 1
    if qp.rnr_deadline != 0:
        return  # a repetition of the NAK that is being obeyed
    if qp.rnr_retry_count != _FOR_EVER:
        if qp.rnr_retries_left <= 0:
            fail_send(nic, qp, _RNR_EXCEEDED)
            return
        qp.rnr_retries_left -= 1
    go_back(qp, qp.una_psn)
    # The acknowledgement timer stands still: the peer has answered (linux 445fd4f4fb76).
    qp.ack_deadline = 0
    qp.rnr_deadline = now + _RNR_NS[timer_code]


@kernel
def _on_nak(nic: Any, qp: Any, code: int) -> None:
    """The peer refuses the oldest request, or misses it."""
    counters = counters_at(nic.counters, 0)
    if code == _NAK_PSN:
        counters.packet_seq_err += 1
        # While it waits for a receive to be posted, all is going to be sent again anyhow. Of a
        # message with more packets than the one that met no receive, soft-RoCE misses the rest,
        # and says so each time: that must not use up the retries.
        if qp.rnr_deadline == 0 and spend_retry(nic, qp):
            go_back(qp, qp.una_psn)
    elif code == _NAK_INVALID_REQUEST:
        counters.req_remote_invalid_request += 1
        fail_send(nic, qp, _REM_INV_REQ)
    elif code == _NAK_REMOTE_ACCESS:
        counters.req_remote_access_errors += 1
        fail_send(nic, qp, _REM_ACCESS)
    else:
        fail_send(nic, qp, _REM_OP)


@kernel
def _refuses_head(qp: Any, psn: int) -> bool:
    """Does a NAK of ``psn`` speak of the oldest request, which a READ's packets may span?"""
    if qp.sq_head >= qp.sq_tail:
        return False
    wqe = wqe_at(qp.sq, qp.sq_head % qp.sq_size)
    if wqe.assigned == 0 or is_local(wqe.opcode):
        return False
    return bool(psn_span(psn, qp.una_psn) <= psn_span(wqe.last_psn, qp.una_psn))


@kernel
def on_acknowledge(nic: Any, qp: Any, psn: int, syndrome: int, now: int) -> None:
    """An ACK, RNR NAK or NAK has arrived (IBTA 1.7 section 9.7.5.2)."""
    # Compared with what has been sent, not with what is planned: nobody can acknowledge that.
    if psn_diff(psn, qp.una_psn) < 0 or psn_diff(psn, qp.high_psn) >= 0:
        return  # a ghost of an acknowledged request, or of another connection
    kind = (syndrome >> 5) & 3
    if kind == _CLASS_ACK:
        if not ack_through(nic, qp, psn, now):
            _implied_nak(nic, qp)
        return
    # A NAK acknowledges everything before it (IBTA 1.7 section 9.7.5.2.2).
    if (
        psn_diff(psn, qp.una_psn) > 0
        and not ack_through(nic, qp, psn_add(psn, -1), now)
        and not _refuses_head(qp, psn)
    ):
        _implied_nak(nic, qp)
        return
    if kind == _CLASS_RNR:
        _on_rnr_nak(nic, qp, syndrome & 31, now)
    elif kind == _CLASS_NAK:
        _on_nak(nic, qp, syndrome & 31)


@kernel
def _next_response_is(nic: Any, qp: Any, psn: int, now: int) -> bool:
    """Is ``psn`` the response that the oldest request waits for? Asks again for a lost one."""
    if psn_diff(psn, qp.una_psn) < 0 or psn_diff(psn, qp.high_psn) >= 0:
        return False
    if psn != qp.una_psn:
        ack_through(nic, qp, psn_add(psn, -1), now)
        if psn != qp.una_psn:
            _implied_nak(nic, qp)
            return False
    else:
        complete_local(nic, qp)
    if qp.state == _ERR or qp.sq_head >= qp.sq_tail:
        return False
    wqe = wqe_at(qp.sq, qp.sq_head % qp.sq_size)
    return bool(wqe.assigned != 0 and wants_response(wqe.opcode))


@kernel
def _finish_response(nic: Any, qp: Any, last_psn: int, psn: int, now: int) -> None:
    """One response packet is in; with the last one the request is complete."""
    qp.una_psn = psn_add(psn, 1)
    if qp.read_packets > 0 and qp.sq_next > qp.sq_head:
        qp.read_packets -= 1
    if psn == last_psn:
        if qp.rd_outstanding > 0 and qp.sq_next > qp.sq_head:
            qp.rd_outstanding -= 1
        complete_send(nic, qp, _SUCCESS)
    _skip_to_head(nic, qp)
    note_progress(qp, now)


@kernel
def on_read_response(nic: Any, qp: Any, psn: int, frame: tuple[int, int, int], now: int) -> None:
    """One packet of a READ's data has arrived, or what acknowledges an ATOMIC WRITE or a FLUSH;
    it counts only in order.

    ``frame`` is the address of its BTH, the bytes of its headers and those of its payload.
    """
    address, header_bytes, length = frame
    if not _next_response_is(nic, qp, psn, now):
        return
    wqe = wqe_at(qp.sq, qp.sq_head % qp.sq_size)
    expected = min(qp.mtu, wqe.length - wqe.received) if wqe.opcode == _READ else 0
    if wqe.opcode in (_CMP_SWAP, _FETCH_ADD) or length != expected:
        fail_send(nic, qp, _BAD_RESP)
        return
    payload = address + header_bytes
    # Who has it summed on its way need not look at it: what is stored is not read soon.
    summed = wqe.sum_addr != 0
    part = (wqe.received, length)
    if not scatter(nic, qp.pd, wqe, part, payload, _LOCAL_WRITE, summed):
        fail_send(nic, qp, _LOC_PROT_ERR)
        return
    if summed and length > 0:
        word = _sums_at(wqe.sum_addr, 1)
        word[0] = continued_sum(np.int64(word[0]), address, header_bytes, length, nic.icrc)
    wqe.received += length
    if summed and wqe.received == wqe.length:
        full_fence()
    _finish_response(nic, qp, wqe.last_psn, psn, now)


@kernel
def on_atomic_response(nic: Any, qp: Any, psn: int, original: int, now: int) -> None:
    """An atomic's original value has arrived, in network order at address ``original``."""
    if not _next_response_is(nic, qp, psn, now):
        return
    wqe = wqe_at(qp.sq, qp.sq_head % qp.sq_size)
    if wqe.opcode not in (_CMP_SWAP, _FETCH_ADD):
        fail_send(nic, qp, _BAD_RESP)
        return
    word = nic.scratch
    store_word(word, get_be64(original))
    if not scatter(nic, qp.pd, wqe, (0, _WORD_BYTES), word, _LOCAL_WRITE, False):
        fail_send(nic, qp, _LOC_PROT_ERR)
        return
    _finish_response(nic, qp, wqe.last_psn, psn, now)
