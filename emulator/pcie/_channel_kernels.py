"""DMA channels: several cores copy the pieces of one job, and whoever wants it copied is one.

A job is divided into pieces. One word says how many there are and which is the next; to claim a
piece is to add one to it. A claim is judged by the word that it changed, so it does not matter how
old the claimer's view of the job was; and a job whose pieces are not all done is not replaced, so
whoever has a piece reads the rest of the record as it was meant. Nothing waits for a helper that
has not claimed: without any, the job is done by its owner alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.driving._sleep_kernels import ring, silence
from emulator.pcie._sum_kernels import copy_and_sum, set_sum, sum_over, sum_so_far
from kvlane._clock_kernels import SCRATCH_WORDS, monotonic_ns
from kvlane._crc_shift_kernels import appended
from kvlane._scheduling_kernels import yield_core
from kvlane.atomics import fetch_add, full_fence, load_acquire, spin_hint, store_release
from kvlane.calls import call
from kvlane.jit import kernel
from kvlane.limits import MAX_CHANNELS
from kvlane.rawmem import copy, record_accessor

LARGE_BYTES = 128 << 10
"""What is shorter is copied sooner than another core hears of it."""
MIN_PIECE_BYTES = 32 << 10
PIECES_PER_CHANNEL = 2
"""Whoever is held up then leaves half of its share to the others."""
_PIECE_ALIGNMENT = 4096

MAX_PIECES = MAX_CHANNELS * PIECES_PER_CHANNEL

MAX_RELUCTANCE = 15

NONE = -1
"""No piece is left."""
_COUNT_SHIFT = 32
_NEXT_MASK = (1 << _COUNT_SHIFT) - 1

_LINE_WORDS = 8
CHANNELS = np.dtype(
    [
        ("ticket", "i8"),  # pieces of the job, and the next one below them
        ("_far_from_ticket", "i8", _LINE_WORDS - 1),
        ("done", "i8"),  # pieces that are copied
        ("_far_from_done", "i8", _LINE_WORDS - 1),
        ("destination", "i8"),
        ("source", "i8"),
        ("length", "i8"),
        ("piece", "i8"),  # its bytes; the last is as long as what is left
        ("summed", "i8"),  # 1: each piece is summed
        ("_far_from_job", "i8", _LINE_WORDS - 5),
        ("sums", "i8", MAX_PIECES),  # the CRC-32 of each piece
        ("count", "i8"),  # channels, the one of the job's owner among them
        ("started", "i8"),  # 1: the helpers were started, as far as that was possible
        ("start", "i8"),  # function that starts them
        ("helpers", "i8"),  # those that run
        ("table", "i8"),  # address of a record of HELPER for each
        ("closing", "i8"),  # 1: they are to end
        ("reluctance", "i8"),  # jobs to do alone after the next time that helpers are woken
        ("alone", "i8"),  # jobs still to do so
        ("jobs", "i8"),
        ("wakes", "i8"),
    ]
)
HELPER = np.dtype(
    [
        ("asleep", "i8"),  # 1: it wants to be woken
        ("event_fd", "i8"),
        ("patience_ns", "i8"),  # how long it looks for work before it sleeps
        ("pieces", "i8"),  # that it has copied
        ("sleeps", "i8"),
        ("scratch", "i8", SCRATCH_WORDS),
        ("_end", "i8", 2 * _LINE_WORDS - 5 - SCRATCH_WORDS),
    ]
)


def _offset(record: np.dtype[Any], name: str) -> int:
    assert record.fields is not None
    return int(record.fields[name][1])


_TICKET = _offset(CHANNELS, "ticket")
_DONE = _offset(CHANNELS, "done")
_DESTINATION = _offset(CHANNELS, "destination")
_SOURCE = _offset(CHANNELS, "source")
_LENGTH = _offset(CHANNELS, "length")
_PIECE = _offset(CHANNELS, "piece")
_SUMMED = _offset(CHANNELS, "summed")
_SUMS = _offset(CHANNELS, "sums")
_CLOSING = _offset(CHANNELS, "closing")
_ASLEEP = _offset(HELPER, "asleep")
_SCRATCH = _offset(HELPER, "scratch")
_HELPER_BYTES = int(HELPER.itemsize)

MIN_PATIENCE_NS = 5_000
MAX_PATIENCE_NS = 60_000
_LOOKS_PER_CLOCK = 32
_LOOKS_BEFORE_YIELD = 4096

channels_at = record_accessor(CHANNELS)
helper_at = record_accessor(HELPER)


@kernel
def copy_shared(channels: int, destination: int, source: int, length: int, word: int) -> None:
    """Copy between two ranges; large ones with all channels. Returns when all bytes are there.

    The sum in the 32-bit word at ``word`` is continued over them, if that is not 0.
    """
    record = channels_at(channels, 0)
    overlap = abs(destination - source) < length
    if length < LARGE_BYTES or record.count < 2 or overlap:
        _copy_alone(destination, source, length, word)
        return
    if record.started == 0:
        call(record.start, 0, 0, 0, 0)
    if record.helpers == 0:
        _copy_alone(destination, source, length, word)
        return
    pieces, own = publish(channels, destination, source, length, word != 0), 0
    wake(channels, pieces - 1)
    while copy_piece(channels):
        own += 1
    _await_done(channels, pieces)
    if own < pieces:
        record.reluctance = record.alone = 0
    if word != 0:
        set_sum(word, _continued(channels, sum_so_far(word), pieces))


@kernel
def _copy_alone(destination: int, source: int, length: int, word: int) -> None:
    if word == 0 or abs(destination - source) < length:
        copy(destination, source, length)
        sum_over(word, destination, length)
    else:
        set_sum(word, copy_and_sum(sum_so_far(word), destination, source, length))


@kernel
def _continued(channels: int, crc: int, pieces: int) -> int:
    """A sum after those of the pieces that are done."""
    record, value = channels_at(channels, 0), np.int64(crc)
    for index in range(pieces):
        nbytes = min(record.piece, record.length - index * record.piece)
        value = np.int64(appended(value, load_acquire(channels + _SUMS + 8 * index), nbytes))
    return int(value)


@kernel
def publish(channels: int, destination: int, source: int, length: int, summed: bool) -> int:
    """Offer a job, when the one before it is done; its pieces."""
    record = channels_at(channels, 0)
    share = length // (record.count * PIECES_PER_CHANNEL) + _PIECE_ALIGNMENT - 1
    piece = max(share // _PIECE_ALIGNMENT * _PIECE_ALIGNMENT, MIN_PIECE_BYTES)
    pieces = (length + piece - 1) // piece
    store_release(channels + _DESTINATION, destination)
    store_release(channels + _SOURCE, source)
    store_release(channels + _LENGTH, length)
    store_release(channels + _PIECE, piece)
    store_release(channels + _SUMMED, 1 if summed else 0)
    store_release(channels + _DONE, 0)
    store_release(channels + _TICKET, pieces << _COUNT_SHIFT)
    record.jobs += 1
    return int(pieces)


@kernel
def wake(channels: int, most: int) -> None:
    """Wake as many sleeping helpers as can be of use.

    To wake costs as much as to copy some pages. Those that come too late, for single jobs or on a
    machine that is busy, are woken ever less often until one of them has copied something.
    """
    record = channels_at(channels, 0)
    if record.alone > 0:
        record.alone -= 1
        return
    full_fence()
    woken = 0
    for index in range(min(record.helpers, most)):
        address = record.table + index * _HELPER_BYTES
        if load_acquire(address + _ASLEEP) != 0:
            store_release(address + _ASLEEP, 0)
            scratch = np.empty(1, np.int64)
            ring(helper_at(record.table, index).event_fd, scratch.ctypes.data)
            woken += 1
    if woken > 0:
        record.wakes += 1
        record.alone = record.reluctance
        record.reluctance = min(2 * record.reluctance + 1, MAX_RELUCTANCE)


@kernel
def has_pieces(channels: int) -> bool:
    """Whether there was a piece to claim a moment ago."""
    ticket = load_acquire(channels + _TICKET)
    return bool(ticket & _NEXT_MASK < ticket >> _COUNT_SHIFT)


@kernel
def claim(channels: int) -> int:
    """Take a piece of the job that is there now; its index, or ``NONE``."""
    if not has_pieces(channels):  # so the word counts few claims that came too late
        return NONE
    ticket = fetch_add(channels + _TICKET, 1)
    index = ticket & _NEXT_MASK
    return int(index) if index < ticket >> _COUNT_SHIFT else NONE


@kernel
def copy_claimed(channels: int, index: int) -> None:
    """Copy a piece that the caller has claimed."""
    piece = load_acquire(channels + _PIECE)
    offset = index * piece
    nbytes = min(piece, load_acquire(channels + _LENGTH) - offset)
    source = load_acquire(channels + _SOURCE) + offset
    destination = load_acquire(channels + _DESTINATION) + offset
    if load_acquire(channels + _SUMMED) != 0:
        store_release(channels + _SUMS + 8 * index, copy_and_sum(0, destination, source, nbytes))
    else:
        copy(destination, source, nbytes)
    fetch_add(channels + _DONE, 1)


@kernel
def copy_piece(channels: int) -> bool:
    """Claim a piece and copy it; False when none is left."""
    index = claim(channels)
    if index == NONE:
        return False
    copy_claimed(channels, index)
    return True


@kernel
def is_done(channels: int, pieces: int) -> bool:
    """Whether so many pieces are copied."""
    return bool(load_acquire(channels + _DONE) == pieces)


@kernel
def _await_done(channels: int, pieces: int) -> None:
    """Until the others have finished the pieces that they are at."""
    looks = 0
    while not is_done(channels, pieces):
        spin_hint()
        looks += 1
        if looks % _LOOKS_BEFORE_YIELD == 0:  # one of them may want this core
            yield_core()


@kernel
def serve(channels: int, index: int) -> None:
    """What a helper does until the channels are closed."""
    table = channels_at(channels, 0).table
    helper, address = helper_at(table, index), table + index * _HELPER_BYTES
    while load_acquire(channels + _CLOSING) == 0:
        while copy_piece(channels):
            helper.pieces += 1
        if _look_around(channels, helper, address + _SCRATCH):
            helper.patience_ns = min(2 * helper.patience_ns, MAX_PATIENCE_NS)
        else:
            helper.patience_ns = max(helper.patience_ns // 2, MIN_PATIENCE_NS)
            _sleep(channels, helper, address)


@kernel
def _look_around(channels: int, helper: Any, scratch: int) -> bool:
    """Whether a job comes within the helper's patience."""
    limit = monotonic_ns(scratch) + helper.patience_ns
    while monotonic_ns(scratch) < limit:
        for _ in range(_LOOKS_PER_CLOCK):
            if has_pieces(channels):
                return True
            spin_hint()
        yield_core()  # to whom the job was done for, should it be woken here
        if load_acquire(channels + _CLOSING) != 0:
            return False
    return False


@kernel
def _sleep(channels: int, helper: Any, address: int) -> None:
    """Until woken. Whoever wakes says so first, so that it wakes once; too often does no harm."""
    store_release(address + _ASLEEP, 1)
    full_fence()
    if not has_pieces(channels) and load_acquire(channels + _CLOSING) == 0:
        helper.sleeps += 1
        silence(helper.event_fd, address + _SCRATCH)
    store_release(address + _ASLEEP, 0)
