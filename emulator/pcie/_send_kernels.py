"""Send queues: taking requests, carrying them out, and ending them in order."""

from __future__ import annotations

from typing import Any

from emulator.driving.faults import Fault
from emulator.pcie import _ring_kernels as ring
from emulator.pcie._access_kernels import LATER, UNREACHABLE, move, opens
from emulator.pcie._bounce_kernels import FAULTED, STALLED, ask_or_collect, put_chunk
from emulator.pcie._completion_kernels import believable, end_oldest, fail_oldest, has_room
from emulator.pcie.layout import (
    CHANNEL_VERDICT,
    CHUNK_BYTES,
    FRAGMENT_BYTES,
    MAX_MESSAGE_BYTES,
    QUANTUM_BYTES,
    REQUEST_COST_BYTES,
    SEND_ENTRY,
    News,
    peer_at,
    send_entry_at,
    send_wr_at,
)
from kvlane.atomics import load_acquire
from kvlane.jit import kernel
from kvlane.rawmem import copy
from kvlane.verbs.enums import AccessFlags, SendFlags, WcStatus, WrOpcode
from kvlane.verbs.records import SEND_WR

_MESSAGE = int(News.MESSAGE)
_WR_BYTES = int(SEND_WR.itemsize)
_ENTRY_BYTES = int(SEND_ENTRY.itemsize)
_WRITE = int(WrOpcode.RDMA_WRITE)
_WRITE_WITH_IMM = int(WrOpcode.RDMA_WRITE_WITH_IMM)
_SEND = int(WrOpcode.SEND)
_SEND_WITH_IMM = int(WrOpcode.SEND_WITH_IMM)
_READ = int(WrOpcode.RDMA_READ)
_INLINE = int(SendFlags.INLINE)
_LOCAL_WRITE = int(AccessFlags.LOCAL_WRITE)
_SUCCESS = int(WcStatus.SUCCESS)
_LOC_PROT_ERR = int(WcStatus.LOC_PROT_ERR)
_GONE = int(WcStatus.RETRY_EXC_ERR)
_BAD_OPCODE = int(Fault.BAD_OPCODE)
_BAD_LENGTH = int(Fault.BAD_LENGTH)
_NO_INLINE = int(Fault.INLINE)


@kernel
def refusal(requests: int, count: int) -> int:
    """Why these requests cannot be posted, as a ``Fault``; 0 when they can."""
    for index in range(count):
        wr = send_wr_at(requests, index)
        if wr.opcode not in (_WRITE, _SEND, _READ, _SEND_WITH_IMM, _WRITE_WITH_IMM):
            return _BAD_OPCODE
        if wr.length < 0 or wr.length > MAX_MESSAGE_BYTES:
            return _BAD_LENGTH
        if wr.send_flags & _INLINE:
            return _NO_INLINE
    return 0


@kernel
def enqueue(qp: Any, requests: int, count: int) -> None:
    """Append requests, for which there is space."""
    for index in range(count):
        entry = send_entry_at(qp.sq, (qp.sq_tail + index) % qp.sq_depth)
        entry.ring_end = 0
        entry.status = _SUCCESS
        at = qp.sq + ((qp.sq_tail + index) % qp.sq_depth) * _ENTRY_BYTES
        copy(at, requests + index * _WR_BYTES, _WR_BYTES)
    qp.sq_tail += count


@kernel
def execute(context: Any, qp: Any) -> int:
    """Carry out requests for one quantum; what that counts for in bytes, 0 for nothing."""
    moved = 0
    while qp.sq_next < qp.sq_tail and not qp.halted and moved < QUANTUM_BYTES:
        entry = send_entry_at(qp.sq, qp.sq_next % qp.sq_depth)
        step = _step(context, qp, entry)
        if step == STALLED:
            break
        moved += step + REQUEST_COST_BYTES
    return moved


@kernel
def _step(context: Any, qp: Any, entry: Any) -> int:
    """One chunk or fragment of a request; its bytes, or ``STALLED``."""
    # For each chunk: the region may have been closed since the last one.
    if qp.sq_offset < entry.length:
        access = _LOCAL_WRITE if entry.opcode == _READ else 0
        if not opens(context, entry.lkey, entry.local_addr, entry.length, access):
            return _halt(qp, entry, _LOC_PROT_ERR)
    if entry.opcode in (_SEND, _SEND_WITH_IMM):
        return _send_fragment(context, qp, entry)
    if qp.sq_offset < entry.length:
        return _move_chunk(context, qp, entry)
    if entry.opcode == _WRITE_WITH_IMM:
        return _announce_write(context, qp, entry)
    _advance(qp)
    return 0


@kernel
def _halt(qp: Any, entry: Any, status: int) -> int:
    """The request has failed; it ends so when all before it have ended."""
    entry.status = status
    qp.halted = 1
    _advance(qp)
    return 0


@kernel
def _advance(qp: Any) -> None:
    qp.sq_next += 1
    qp.sq_offset = 0


@kernel
def _move_chunk(context: Any, qp: Any, entry: Any) -> int:
    nbytes = min(CHUNK_BYTES, entry.length - qp.sq_offset)
    writes = entry.opcode != _READ
    peer = peer_at(context.peers, qp.peer)
    status = UNREACHABLE
    if qp.get_end == 0:
        status = move(context, qp, peer, entry, (qp.sq_offset, nbytes, writes))
    if status == LATER:
        return STALLED
    if status == UNREACHABLE:
        nbytes = _bounce_chunk(context, qp, peer, entry)
        if nbytes == FAULTED:
            return _halt(qp, entry, _LOC_PROT_ERR)
        if nbytes <= 0:
            return int(nbytes)
    elif status != _SUCCESS:
        return _halt(qp, entry, status)
    return _moved(context, qp, entry, nbytes)


@kernel
def _bounce_chunk(context: Any, qp: Any, peer: Any, entry: Any) -> int:
    """Let the owner of the memory copy: see ``_bounce_kernels``."""
    if peer.is_bounced == 0:
        peer.is_bounced = 1
        context.remarks = context.attend_due = 1
    if entry.opcode == _READ:
        return ask_or_collect(context, qp, entry)
    return put_chunk(context, qp, entry)


@kernel
def _moved(context: Any, qp: Any, entry: Any, nbytes: int) -> int:
    """So many more bytes of a request are done."""
    writes = entry.opcode != _READ
    qp.sq_offset += nbytes
    if writes:
        context.tx_bytes += nbytes
    else:
        context.rx_bytes += nbytes
    if qp.sq_offset == entry.length:
        if writes:
            context.rdma_writes += 1
        else:
            context.rdma_reads += 1
        if entry.opcode != _WRITE_WITH_IMM:
            _advance(qp)
    return int(nbytes)


@kernel
def _announce_write(context: Any, qp: Any, entry: Any) -> int:
    """The bytes are there: tell the peer, and use up one of its receives."""
    if not ring.has_space(qp.outbound, qp.tx_tail, 0):
        return STALLED
    header = (entry.opcode, entry.length, entry.imm)
    qp.tx_tail = ring.put(qp.outbound, qp.tx_tail, header, 0, 0)
    return _sent(context, qp, entry)


@kernel
def _send_fragment(context: Any, qp: Any, entry: Any) -> int:
    nbytes = min(FRAGMENT_BYTES, entry.length - qp.sq_offset)
    if not ring.has_space(qp.outbound, qp.tx_tail, nbytes):
        return STALLED
    header = (entry.opcode, entry.length, entry.imm)
    source = entry.local_addr + qp.sq_offset
    qp.tx_tail = ring.put(qp.outbound, qp.tx_tail, header, source, nbytes)
    qp.news |= _MESSAGE
    qp.sq_offset += nbytes
    context.tx_bytes += nbytes
    if qp.sq_offset == entry.length:
        return _sent(context, qp, entry) + int(nbytes)
    return int(nbytes)


@kernel
def _sent(context: Any, qp: Any, entry: Any) -> int:
    """All of a message is in the ring; it is done when the peer has taken it out."""
    entry.ring_end = qp.tx_tail
    qp.news |= _MESSAGE
    context.tx_messages += 1
    _advance(qp)
    return 0


@kernel
def retire(context: Any, qp: Any) -> int:
    """End the requests that are done, in order; how many."""
    if qp.sq_done == qp.sq_tail:
        return 0
    ended = 0
    verdict = load_acquire(qp.outbound + CHANNEL_VERDICT)
    head = ring.taken(qp.outbound, qp.tx_head, qp.tx_tail)
    if head == ring.BROKEN:
        verdict = _GONE
    else:
        qp.tx_head = head
    while qp.sq_done < qp.sq_next and has_room(context, qp):
        entry = send_entry_at(qp.sq, qp.sq_done % qp.sq_depth)
        if entry.status != _SUCCESS:
            fail_oldest(context, qp, entry.status)
            return ended + 1
        if entry.ring_end > qp.tx_head:
            break
        end_oldest(context, qp, _SUCCESS)
        ended += 1
    if verdict != _SUCCESS and qp.sq_done < qp.sq_tail and has_room(context, qp):
        fail_oldest(context, qp, believable(verdict))
        ended += 1
    return ended
