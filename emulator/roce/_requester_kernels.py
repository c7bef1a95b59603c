"""The requester: turns send work requests into packets, and goes back when one is lost."""

from __future__ import annotations

from typing import Any

from emulator.roce._completion_kernels import fail_send
from emulator.roce._emit_kernels import (
    BTH_BYTES,
    IMM_BYTES,
    RETH_BYTES,
    begin_frame,
    finish_frame,
    has_room,
    put_be,
    put_reth,
)
from emulator.roce._memory_kernels import gather, sges_allowed
from emulator.roce._psn_kernels import packets_of, psn_add, psn_diff
from emulator.roce.state import counters_at, wqe_at
from emulator.wire.opcode import Opcode
from kvlane.jit import kernel
from kvlane.verbs.enums import AccessFlags, WcStatus, WrOpcode

_READ = int(WrOpcode.RDMA_READ)
_WRITE = int(WrOpcode.RDMA_WRITE)
_WRITE_IMM = int(WrOpcode.RDMA_WRITE_WITH_IMM)
_SEND_IMM = int(WrOpcode.SEND_WITH_IMM)
_LOCAL_WRITE = int(AccessFlags.LOCAL_WRITE)
_LOC_PROT_ERR = int(WcStatus.LOC_PROT_ERR)
_RETRY_EXC_ERR = int(WcStatus.RETRY_EXC_ERR)

_SEND_FIRST = int(Opcode.RC_SEND_FIRST)
_SEND_MIDDLE = int(Opcode.RC_SEND_MIDDLE)
_SEND_LAST = int(Opcode.RC_SEND_LAST)
_SEND_LAST_IMM = int(Opcode.RC_SEND_LAST_WITH_IMMEDIATE)
_SEND_ONLY = int(Opcode.RC_SEND_ONLY)
_SEND_ONLY_IMM = int(Opcode.RC_SEND_ONLY_WITH_IMMEDIATE)
_TO_WRITE = int(Opcode.RC_RDMA_WRITE_FIRST) - _SEND_FIRST
"""WRITE opcodes follow SEND's in the same order."""
_READ_REQUEST = int(Opcode.RC_RDMA_READ_REQUEST)

_ACK_EVERY = 32
"""Packets between requests for an acknowledgement inside a long message."""
_MAX_BACKOFF = 4
"""A transport timer may run up to four times its interval (IBTA 1.7 section 9.9.2.1.1)."""


@kernel
def arm_ack_timer(qp: Any, now: int) -> None:
    """Start waiting for an acknowledgement, or stop when nothing is outstanding."""
    qp.ack_deadline = 0
    if qp.ack_timeout_ns > 0 and psn_diff(qp.tx_psn, qp.una_psn) > 0:
        backoff = min(_MAX_BACKOFF, 1 << max(0, qp.retry_count - qp.retries_left))
        qp.ack_deadline = now + qp.ack_timeout_ns * backoff


@kernel
def note_progress(qp: Any, now: int) -> None:
    """Something was acknowledged: all retries are available again."""
    qp.retries_left = qp.retry_count
    qp.rnr_retries_left = qp.rnr_retry_count
    qp.went_back = 0
    arm_ack_timer(qp, now)


@kernel
def go_back(qp: Any, psn: int) -> None:
    """Transmit again from ``psn``, which a WQE between head and next holds."""
    reads = 0
    index = qp.sq_head
    while index < qp.sq_tail:
        wqe = wqe_at(qp.sq, index % qp.sq_size)
        if wqe.assigned == 0 or psn_diff(psn, wqe.last_psn) <= 0:
            break
        if wqe.opcode == _READ:
            reads += 1
        index += 1
    qp.sq_next = index
    qp.tx_psn = psn
    qp.rd_outstanding = reads
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
    if psn_diff(qp.tx_psn, qp.una_psn) <= 0:
        qp.ack_deadline = 0
        return
    counters_at(nic.counters, 0).local_ack_timeout_err += 1
    if spend_retry(nic, qp):
        go_back(qp, qp.una_psn)
        # Armed even if a full burst delays the retransmission itself.
        backoff = min(_MAX_BACKOFF, 1 << (qp.retry_count - qp.retries_left))
        qp.ack_deadline = now + qp.ack_timeout_ns * backoff


@kernel
def _assign(nic: Any, qp: Any, wqe: Any) -> bool:
    """Give a WQE its PSNs once its local memory is known to be accessible."""
    access = _LOCAL_WRITE if wqe.opcode == _READ else 0
    if not sges_allowed(nic, qp.pd, wqe, access):
        # Completions are in order: the error waits until it is the oldest.
        if qp.sq_next == qp.sq_head:
            fail_send(nic, qp, _LOC_PROT_ERR)
        return False
    wqe.first_psn = qp.next_psn
    wqe.last_psn = psn_add(qp.next_psn, packets_of(wqe.length, qp.mtu) - 1)
    wqe.sent = 0
    wqe.received = 0
    wqe.assigned = 1
    qp.next_psn = psn_add(wqe.last_psn, 1)
    return True


@kernel
def _may_transmit(qp: Any, wqe: Any) -> bool:
    """Window and READ limits. A message larger than the window still goes, alone."""
    outstanding = psn_diff(qp.tx_psn, qp.una_psn)
    if wqe.opcode == _READ:
        if qp.rd_outstanding >= qp.max_rd_atomic:
            return False
        packets = psn_diff(wqe.last_psn, qp.tx_psn) + 1
        return bool(outstanding <= 0 or outstanding + packets <= qp.read_window)
    return bool(outstanding < qp.window)


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
    finish_frame(nic, qp, address, BTH_BYTES + RETH_BYTES, 0)
    qp.tx_psn = psn_add(wqe.last_psn, 1)
    qp.rd_outstanding += 1
    qp.sq_next += 1


@kernel
def _data_opcode(wqe: Any, first: bool, last: bool) -> int:
    """The opcode of one packet of a SEND or WRITE."""
    with_imm = wqe.opcode in (_SEND_IMM, _WRITE_IMM)
    if first and last:
        opcode = _SEND_ONLY_IMM if with_imm else _SEND_ONLY
    elif first:
        opcode = _SEND_FIRST
    elif last:
        opcode = _SEND_LAST_IMM if with_imm else _SEND_LAST
    else:
        opcode = _SEND_MIDDLE
    if wqe.opcode in (_WRITE, _WRITE_IMM):
        opcode += _TO_WRITE
    return opcode


@kernel
def _emit_data(nic: Any, qp: Any, wqe: Any) -> None:
    """The next packet of a SEND or WRITE."""
    offset = wqe.sent * qp.mtu
    payload = min(qp.mtu, wqe.length - offset)
    first = wqe.sent == 0
    last = qp.tx_psn == wqe.last_psn
    opcode = _data_opcode(wqe, first, last)
    closes_window = psn_diff(qp.tx_psn, qp.una_psn) + 1 >= qp.window
    ack_request = last or closes_window or qp.tx_psn % _ACK_EVERY == 0
    address = begin_frame(nic, qp, opcode, qp.tx_psn, ack_request)
    header = BTH_BYTES
    if first and wqe.opcode in (_WRITE, _WRITE_IMM):
        put_reth(address + header, wqe.remote_addr, wqe.rkey, wqe.length)
        header += RETH_BYTES
    if last and wqe.opcode in (_SEND_IMM, _WRITE_IMM):
        put_be(address + header, wqe.imm, IMM_BYTES)
        header += IMM_BYTES
    gather(wqe, offset, payload, address + header)
    finish_frame(nic, qp, address, header, payload)
    wqe.sent += 1
    qp.tx_psn = psn_add(qp.tx_psn, 1)
    if last:
        qp.sq_next += 1


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
        if (wqe.assigned == 0 and not _assign(nic, qp, wqe)) or not _may_transmit(qp, wqe):
            break
        if psn_diff(qp.tx_psn, qp.high_psn) < 0:
            counters_at(nic.counters, 0).retransmitted_packets += 1
        if wqe.opcode == _READ:
            _emit_read_request(nic, qp, wqe)
        else:
            _emit_data(nic, qp, wqe)
        if psn_diff(qp.tx_psn, qp.high_psn) > 0:
            qp.high_psn = qp.tx_psn
        emitted += 1
    if emitted > 0 and qp.ack_deadline == 0:
        arm_ack_timer(qp, now)
    return emitted
