"""ATOMIC WRITE and FLUSH at the responder (IBTA 1.7 annex A19, memory placement extensions).

Both take a responder resource like a READ and are answered by a READ response without data.
"""

from __future__ import annotations

from typing import Any

from emulator.roce._answer_kernels import NAK_ACCESS, NAK_INVALID, refuse
from emulator.roce._atomic_kernels import WORD_BYTES
from emulator.roce._emit_kernels import FETH_BYTES, RETH_BYTES
from emulator.roce._memory_kernels import host_address, opened_by
from emulator.roce._resource_kernels import fault_before_length, keep_and_answer
from emulator.roce._word_kernels import load_word, store_word
from emulator.roce.state import JOB_EMPTY, MAX_MESSAGE_BYTES
from emulator.wire._byte_kernels import get_be, get_be64
from emulator.wire.feth import LEVEL_SHIFT, PLACEMENT_MASK, Placement, Selectivity
from emulator.wire.opcode import Opcode
from kvlane.jit import kernel
from kvlane.rawmem import publish
from kvlane.verbs.enums import AccessFlags

_ATOMIC_WRITE = int(Opcode.RC_ATOMIC_WRITE)
_FLUSH = int(Opcode.RC_FLUSH)
_REMOTE_WRITE = int(AccessFlags.REMOTE_WRITE)
_FLUSH_GLOBAL = int(AccessFlags.FLUSH_GLOBAL)
_FLUSH_PERSISTENT = int(AccessFlags.FLUSH_PERSISTENT)
_GLOBAL = int(Placement.GLOBAL)
_PERSISTENT = int(Placement.PERSISTENT)
_LEVEL_MASK = 3
_RANGE = int(Selectivity.RANGE)
_REGION = int(Selectivity.REGION)


@kernel
def take_atomic_write(nic: Any, qp: Any, psn: int, reth: int, length: int) -> bool:
    """Store 8 bytes at once, after all that came before them; False when it was refused.

    Where they lie in this process must be aligned too, not just how the peer calls it: a
    store that crosses a cache line would be seen in halves.
    """
    addr = get_be64(reth)
    announced = get_be(reth + 12, 4)
    fault = fault_before_length(qp, _REMOTE_WRITE)
    misshapen = announced != WORD_BYTES or length != WORD_BYTES or addr % WORD_BYTES != 0
    if fault == 0 and misshapen:
        fault = NAK_INVALID
    if fault != 0:
        refuse(nic, qp, psn, fault)
        return False
    target = host_address(nic, qp, get_be(reth + 8, 4), addr, WORD_BYTES, _REMOTE_WRITE)
    if target == 0:
        refuse(nic, qp, psn, NAK_ACCESS)
        return False
    if target % WORD_BYTES != 0:
        refuse(nic, qp, psn, NAK_INVALID)
        return False
    publish()
    store_word(target, load_word(reth + RETH_BYTES))
    keep_and_answer(qp, _ATOMIC_WRITE, psn, JOB_EMPTY, 0)
    return True


@kernel
def _permission_for(placement: int) -> int:
    """What a region must permit for such a FLUSH."""
    access = 0
    if (placement & _GLOBAL) != 0:
        access |= _FLUSH_GLOBAL
    if (placement & _PERSISTENT) != 0:
        access |= _FLUSH_PERSISTENT
    return access


@kernel
def _key_opens(nic: Any, qp: Any, access: int, level: int, reth: int) -> bool:
    """Does the key open the range, or, for the whole region, anything at all?"""
    key = get_be(reth + 8, 4)
    if level == _REGION:
        return opened_by(nic, qp, key, access) != 0  # address and length mean nothing
    return host_address(nic, qp, key, get_be64(reth), get_be(reth + 12, 4), access) != 0


@kernel
def _flush_fault(qp: Any, placement: int, level: int, length: int) -> int:
    """Why a FLUSH is refused whatever its key, as a syndrome; else 0."""
    if (
        placement == 0
        or (placement & ~(_GLOBAL | _PERSISTENT)) != 0
        or level not in (_RANGE, _REGION)
    ):
        return NAK_INVALID
    fault = fault_before_length(qp, _permission_for(placement))
    if fault == 0 and level == _RANGE and length > MAX_MESSAGE_BYTES:
        fault = NAK_INVALID
    return int(fault)


@kernel
def take_flush(nic: Any, qp: Any, psn: int, feth: int) -> bool:
    """Answer once all earlier data is where the FLUSH wants it; False when it was refused.

    Requests are executed in order and their data lies in memory at once, so that everybody
    on this machine sees it. No region permits persistence (``RegionTable``), so a FLUSH for
    that is refused for want of the permission.
    """
    word = get_be(feth, FETH_BYTES)
    placement = word & PLACEMENT_MASK
    level = (word >> LEVEL_SHIFT) & _LEVEL_MASK
    reth = feth + FETH_BYTES
    fault = _flush_fault(qp, placement, level, get_be(reth + 12, 4))
    if fault != 0:
        refuse(nic, qp, psn, fault)
        return False
    if not _key_opens(nic, qp, _permission_for(placement), level, reth):
        refuse(nic, qp, psn, NAK_ACCESS)
        return False
    publish()
    keep_and_answer(qp, _FLUSH, psn, JOB_EMPTY, 0)
    return True
