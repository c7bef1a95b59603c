"""Sending what the responder owes: responses in order, then one ACK or NAK."""

from __future__ import annotations

from typing import Any

from emulator.link.frames import frame_at
from emulator.roce._completion_kernels import enter_error, stop_answering
from emulator.roce._emit_kernels import (
    AETH_BYTES,
    ATOMIC_ACK_BYTES,
    BTH_BYTES,
    begin_frame,
    finish_frame,
    has_room,
    put_aeth,
)
from emulator.roce._event_kernels import push_event
from emulator.roce._memory_kernels import copy_out, host_address
from emulator.roce._pacing_kernels import paced_until, spend_pace
from emulator.roce._psn_kernels import psn_add
from emulator.roce.state import (
    ANSWER_NONE,
    JOB_READ,
    JOB_VALUE,
    MAX_READ_JOBS,
    counters_at,
    job_at,
)
from emulator.wire._byte_kernels import put_be
from emulator.wire.aeth import UNLIMITED_CREDITS, NakCode
from emulator.wire.opcode import Opcode
from kvlane.jit import kernel
from kvlane.rawmem import bytes_at
from kvlane.verbs.enums import AccessFlags, EventType

_ACKNOWLEDGE = int(Opcode.RC_ACKNOWLEDGE)
_ATOMIC_ACKNOWLEDGE = int(Opcode.RC_ATOMIC_ACKNOWLEDGE)
_FIRST = int(Opcode.RC_RDMA_READ_RESPONSE_FIRST)
_MIDDLE = int(Opcode.RC_RDMA_READ_RESPONSE_MIDDLE)
_LAST = int(Opcode.RC_RDMA_READ_RESPONSE_LAST)
_ONLY = int(Opcode.RC_RDMA_READ_RESPONSE_ONLY)
_QP_ACCESS_ERR = int(EventType.QP_ACCESS_ERR)
_CNP = int(Opcode.CNP)
_REMOTE_READ = int(AccessFlags.REMOTE_READ)
_NAK_ACCESS = 0x60 | int(NakCode.REMOTE_ACCESS_ERROR)
_CNP_PAYLOAD_BYTES = 16
_CNP_TOS = (48 << 2) | 2
"""DSCP 48 and ECT(0), as ConnectX marks its notifications."""
_BECN = 0x40


@kernel
def _emit_acknowledge(nic: Any, qp: Any, psn: int, syndrome: int) -> None:
    address = begin_frame(nic, qp, _ACKNOWLEDGE, psn, False)
    put_aeth(address + BTH_BYTES, syndrome, qp.msn)
    finish_frame(nic, address, BTH_BYTES + AETH_BYTES, 0)


@kernel
def end_job(qp: Any, job: Any) -> None:
    """Take the oldest request off the ring."""
    if job.repeated == 0:
        qp.new_jobs -= 1
    qp.job_head += 1


@kernel
def _response_opcode(first: bool, last: bool) -> int:
    if last:
        return _ONLY if first else _LAST
    return _FIRST if first else _MIDDLE


@kernel
def _stop_response(nic: Any, qp: Any, job: Any) -> None:
    """The region of a READ has gone while it was being answered.

    A NAK may stand in the middle of a response (IBTA 1.7 section 9.7.5.2.4) and ends the
    connection like any access fault. A repeated READ is only dropped: if it is still
    wanted it comes again and is refused then.
    """
    if job.repeated != 0:
        end_job(qp, job)
        return
    counters_at(nic.counters, 0).resp_remote_access_errors += 1
    _emit_acknowledge(nic, qp, job.psn, _NAK_ACCESS)
    stop_answering(qp)
    push_event(nic, _QP_ACCESS_ERR, qp.qpn)
    enter_error(nic, qp)


@kernel
def _emit_read_response(nic: Any, qp: Any, job: Any) -> None:
    """The next packet of a READ's data."""
    payload = min(qp.mtu, job.left)
    last = job.psn == job.last_psn
    source = 0
    if payload > 0:
        source = host_address(nic, qp, job.rkey, job.addr, payload, _REMOTE_READ)
        if source == 0:
            _stop_response(nic, qp, job)
            return
    opcode = _response_opcode(job.started == 0, last)
    address = begin_frame(nic, qp, opcode, job.psn, False)
    header = BTH_BYTES
    if opcode != _MIDDLE:
        put_aeth(address + header, UNLIMITED_CREDITS, qp.msn)
        header += AETH_BYTES
    copy_out(address + header, source, payload, job.left - payload)
    finish_frame(nic, address, header, payload)
    job.started = 1
    job.psn = psn_add(job.psn, 1)
    job.addr += payload
    job.left -= payload
    if last:
        end_job(qp, job)


@kernel
def _emit_atomic_response(nic: Any, qp: Any, job: Any) -> None:
    address = begin_frame(nic, qp, _ATOMIC_ACKNOWLEDGE, job.psn, False)
    put_aeth(address + BTH_BYTES, UNLIMITED_CREDITS, qp.msn)
    put_be(address + BTH_BYTES + AETH_BYTES, job.value, ATOMIC_ACK_BYTES)
    finish_frame(nic, address, BTH_BYTES + AETH_BYTES + ATOMIC_ACK_BYTES, 0)
    end_job(qp, job)


@kernel
def _emit_empty_response(nic: Any, qp: Any, job: Any) -> None:
    """What acknowledges an ATOMIC WRITE or a FLUSH (IBTA 1.7 annex A19)."""
    address = begin_frame(nic, qp, _ONLY, job.psn, False)
    put_aeth(address + BTH_BYTES, UNLIMITED_CREDITS, qp.msn)
    finish_frame(nic, address, BTH_BYTES + AETH_BYTES, 0)
    end_job(qp, job)


@kernel
def _emit_cnp(nic: Any, qp: Any, now: int) -> None:
    """Tell the sender that its packets met congestion (IBTA 1.7 annex A17.9.3)."""
    address = begin_frame(nic, qp, _CNP, 0, False)
    bth = bytes_at(address, BTH_BYTES)
    bth[1] = 0  # ConnectX leaves MigReq out of these
    bth[4] = _BECN
    put_be(address + BTH_BYTES, 0, 8)
    put_be(address + BTH_BYTES + 8, 0, 8)
    frame_at(nic.tx_frames, nic.tx_count).tos = _CNP_TOS
    finish_frame(nic, address, BTH_BYTES + _CNP_PAYLOAD_BYTES, 0)
    qp.cnp_due = 0
    qp.cnp_time = now
    counters_at(nic.counters, 0).np_cnp_sent += 1


@kernel
def transmit_answers(nic: Any, qp: Any, now: int, quota: int) -> int:
    """Fill the burst with up to ``quota`` response packets; return how many.

    An acknowledgement waits behind READ data, because it would acknowledge it.
    """
    emitted = 0
    if qp.cnp_due != 0 and now >= qp.cnp_time + nic.cnp_interval_ns and has_room(nic):
        _emit_cnp(nic, qp, now)
    while qp.job_head < qp.job_tail:
        if emitted >= quota or not has_room(nic):
            return emitted
        job = job_at(qp.jobs, qp.job_head % MAX_READ_JOBS)
        if job.kind == JOB_READ and now < paced_until(qp):
            qp.pace_wait = paced_until(qp)
            return emitted
        emitted += 1
        if job.kind == JOB_READ:
            before = nic.tx_bytes
            _emit_read_response(nic, qp, job)
            spend_pace(qp, nic.tx_bytes - before, now)
        elif job.kind == JOB_VALUE:
            _emit_atomic_response(nic, qp, job)
        else:
            _emit_empty_response(nic, qp, job)
    if qp.answer != ANSWER_NONE and has_room(nic):
        _emit_acknowledge(nic, qp, qp.answer_psn, qp.answer_syndrome)
        qp.answer = ANSWER_NONE
        emitted += 1
    return emitted
