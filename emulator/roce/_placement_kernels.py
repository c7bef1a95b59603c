"""ATOMIC WRITE and FLUSH at the responder (IBTA 1.7 annex A19, memory placement extensions).

Both take a responder resource like a READ and are answered by a READ response without data.
"""

from __future__ import annotations

from typing import Any

from emulator.roce._answer_kernels import NAK_ACCESS, NAK_INVALID, refuse
from emulator.roce._atomic_kernels import WORD_BYTES
from emulator.roce._byte_kernels import get_be, get_be64, load_word, store_word
from emulator.roce._emit_kernels import FETH_BYTES, RETH_BYTES
from emulator.roce._job_kernels import may_queue
from emulator.roce._memory_kernels import host_address, opened_by
from emulator.roce._resource_kernels import keep_and_answer
from emulator.roce.state import INBOUND_NONE, JOB_EMPTY, MAX_MESSAGE_BYTES
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
    if (
        qp.inbound != INBOUND_NONE
        or announced != WORD_BYTES
        or length != WORD_BYTES
        or addr % WORD_BYTES != 0
    ):
        refuse(nic, qp, psn, NAK_INVALID)
        return False
    target = 0
    if (qp.access & _REMOTE_WRITE) != 0:
        target = host_address(nic, qp, get_be(reth + 8, 4), addr, WORD_BYTES, _REMOTE_WRITE)
    if target == 0:
        refuse(nic, qp, psn, NAK_ACCESS)
        return False
    if target % WORD_BYTES != 0 or not may_queue(qp, False):
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
def _may_flush(nic: Any, qp: Any, access: int, level: int, reth: int) -> bool:
    """Does the key open the range, or, for the whole region, anything at all?"""
    if (qp.access & access) != access:
        return False
    key = get_be(reth + 8, 4)
    if level == _REGION:
        return opened_by(nic, qp, key, access) != 0  # address and length mean nothing
    return host_address(nic, qp, key, get_be64(reth), get_be(reth + 12, 4), access) != 0


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
    if (
        qp.inbound != INBOUND_NONE
        or placement == 0
        or (placement & ~(_GLOBAL | _PERSISTENT)) != 0
        or level not in (_RANGE, _REGION)
        or (level == _RANGE and get_be(reth + 12, 4) > MAX_MESSAGE_BYTES)
    ):
        refuse(nic, qp, psn, NAK_INVALID)
        return False
    if not _may_flush(nic, qp, _permission_for(placement), level, reth):
        refuse(nic, qp, psn, NAK_ACCESS)
        return False
    if not may_queue(qp, False):
        refuse(nic, qp, psn, NAK_INVALID)
        return False
    publish()
    keep_and_answer(qp, _FLUSH, psn, JOB_EMPTY, 0)
    return True
