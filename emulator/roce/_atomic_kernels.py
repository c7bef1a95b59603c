"""Atomics, and the results that are kept because a repeated request must not execute again."""

from __future__ import annotations

from typing import Any

from emulator.roce._word_kernels import add_wrapping, load_word, store_word
from emulator.roce.state import MAX_RD_ATOMIC, atomic_result_at
from kvlane.jit import kernel

WORD_BYTES = 8


@kernel
def execute_atomic(target: int, compares: bool, swap_or_add: int, compare: int) -> int:
    """Compare-and-swap or fetch-and-add the word at ``target``; return what it was.

    The engine's owner runs one request at a time, which makes it atomic towards all that
    goes through this NIC, as ``IBV_ATOMIC_HCA`` promises.
    """
    original = load_word(target)
    if compares:
        if original == compare:
            store_word(target, swap_or_add)
    else:
        store_word(target, add_wrapping(original, swap_or_add))
    return original


@kernel
def keep_result(qp: Any, operation: int, psn: int, value: int) -> None:
    """Remember what came of a request, in place of the oldest that is remembered."""
    result = atomic_result_at(qp.atomics, qp.atomic_tail % MAX_RD_ATOMIC)
    result.operation = operation
    result.psn = psn
    result.value = value
    result.valid = 1
    qp.atomic_tail += 1


@kernel
def kept_result(qp: Any, operation: int, psn: int) -> int:
    """Slot of the kept result of the request with this PSN, or -1 when it is kept no more."""
    kept = min(qp.atomic_tail, MAX_RD_ATOMIC)
    for age in range(1, kept + 1):
        slot = (qp.atomic_tail - age) % MAX_RD_ATOMIC
        result = atomic_result_at(qp.atomics, slot)
        if result.valid != 0 and result.psn == psn and result.operation == operation:
            return int(slot)
    return -1
