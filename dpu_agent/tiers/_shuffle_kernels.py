"""Byte shuffle: all first bytes of the elements of a block, then all second ones, and so on.

Numbers of one kind differ in their low bytes and are alike in their high ones, where sign and
exponent are. Side by side, the alike compress. What is left behind the last whole element stays
where it is. Source and target do not overlap.
"""

from __future__ import annotations

from kvlane.jit import JIT_ENABLED, kernel
from kvlane.rawmem import bytes_at, copy


@kernel
def shuffle(target: int, source: int, nbytes: int, element_bytes: int) -> None:
    """Shuffle ``nbytes`` from one address to another, by elements of 2 or 4 bytes; any other
    ``element_bytes`` leaves them as they are."""
    rows = nbytes // element_bytes
    if element_bytes == 2:
        _part_two(target, source, rows)
    elif element_bytes == 4:
        _part_four(target, source, rows)
    else:
        rows = 0
    done = rows * element_bytes
    copy(target + done, source + done, nbytes - done)


@kernel
def unshuffle(target: int, source: int, nbytes: int, element_bytes: int) -> None:
    """Undo ``shuffle``."""
    rows = nbytes // element_bytes
    if element_bytes == 2:
        _join_two(target, source, rows)
    elif element_bytes == 4:
        _join_four(target, source, rows)
    else:
        rows = 0
    done = rows * element_bytes
    copy(target + done, source + done, nbytes - done)


if JIT_ENABLED:
    # Each size has a loop of its own, which becomes vector instructions.

    @kernel
    def _part_two(target: int, source: int, rows: int) -> None:
        taken, put = bytes_at(source, 2 * rows), bytes_at(target, 2 * rows)
        for i in range(rows):
            put[i] = taken[2 * i]
            put[rows + i] = taken[2 * i + 1]

    @kernel
    def _join_two(target: int, source: int, rows: int) -> None:
        taken, put = bytes_at(source, 2 * rows), bytes_at(target, 2 * rows)
        for i in range(rows):
            put[2 * i] = taken[i]
            put[2 * i + 1] = taken[rows + i]

    @kernel
    def _part_four(target: int, source: int, rows: int) -> None:
        taken, put = bytes_at(source, 4 * rows), bytes_at(target, 4 * rows)
        for i in range(rows):
            put[i] = taken[4 * i]
            put[rows + i] = taken[4 * i + 1]
            put[2 * rows + i] = taken[4 * i + 2]
            put[3 * rows + i] = taken[4 * i + 3]

    @kernel
    def _join_four(target: int, source: int, rows: int) -> None:
        taken, put = bytes_at(source, 4 * rows), bytes_at(target, 4 * rows)
        for i in range(rows):
            put[4 * i] = taken[i]
            put[4 * i + 1] = taken[rows + i]
            put[4 * i + 2] = taken[2 * rows + i]
            put[4 * i + 3] = taken[3 * rows + i]

else:
    # By the interpreter, a loop over bytes takes a second for a block.

    def _part(target: int, source: int, rows: int, element_bytes: int) -> None:
        taken = bytes_at(source, element_bytes * rows).reshape(rows, element_bytes)
        bytes_at(target, element_bytes * rows).reshape(element_bytes, rows)[:] = taken.T

    def _join(target: int, source: int, rows: int, element_bytes: int) -> None:
        taken = bytes_at(source, element_bytes * rows).reshape(element_bytes, rows)
        bytes_at(target, element_bytes * rows).reshape(rows, element_bytes)[:] = taken.T

    def _part_two(target: int, source: int, rows: int) -> None:
        _part(target, source, rows, 2)

    def _join_two(target: int, source: int, rows: int) -> None:
        _join(target, source, rows, 2)

    def _part_four(target: int, source: int, rows: int) -> None:
        _part(target, source, rows, 4)

    def _join_four(target: int, source: int, rows: int) -> None:
        _join(target, source, rows, 4)
