"""The ring of a channel: fragments of messages from one process to another.

A position counts bytes since the channel was made. The sender keeps its tail and the receiver
its head in private memory, and publishes a copy; the other side's copy is checked on reading.
"""

from __future__ import annotations

from emulator.pcie.layout import (
    CHANNEL_HEAD,
    CHANNEL_RING,
    CHANNEL_TAIL,
    RING_BYTES,
    RING_HEADER_BYTES,
)
from kvlane.atomics import load_acquire, store_release
from kvlane.jit import kernel
from kvlane.rawmem import copy

_MASK = RING_BYTES - 1
BROKEN = -1


@kernel
def footprint(nbytes: int) -> int:
    """Bytes of the ring that a fragment takes: whole headers, so that none wraps around."""
    units = (nbytes + RING_HEADER_BYTES - 1) // RING_HEADER_BYTES
    return (1 + units) * RING_HEADER_BYTES


@kernel
def has_space(channel: int, tail: int, nbytes: int) -> bool:
    """Whether a fragment fits behind ``tail``; a head that cannot be leaves no space."""
    used = tail - load_acquire(channel + CHANNEL_HEAD)
    return bool(0 <= used <= RING_BYTES - footprint(nbytes))


@kernel
def taken(channel: int, known: int, tail: int) -> int:
    """The receiver's head; ``BROKEN`` when it goes back behind ``known`` or beyond the tail."""
    head = load_acquire(channel + CHANNEL_HEAD)
    return int(head) if known <= head <= tail else BROKEN


@kernel
def content(channel: int, head: int, nbytes: int) -> tuple[int, int]:
    """Where a fragment's bytes begin, and how many of them are there; the rest is at the start
    of the ring."""
    start = (head + RING_HEADER_BYTES) & _MASK
    return channel + CHANNEL_RING + start, min(nbytes, RING_BYTES - start)


@kernel
def put(channel: int, tail: int, header: tuple[int, int, int], source: int, nbytes: int) -> int:
    """Append a fragment for which there is space and publish it; the new tail."""
    target, first = begin(channel, tail, header, nbytes)
    copy(target, source, first)
    copy(channel + CHANNEL_RING, source + first, nbytes - first)
    return publish(channel, tail, nbytes)


@kernel
def begin(channel: int, tail: int, header: tuple[int, int, int], nbytes: int) -> tuple[int, int]:
    """Write the header of a fragment for which there is space; where its bytes go (``content``).

    ``header`` is kind, length of the whole message and immediate data, or what stands there.
    """
    at = channel + CHANNEL_RING + (tail & _MASK)
    store_release(at, header[0])
    store_release(at + 8, header[1])
    store_release(at + 16, nbytes)
    store_release(at + 24, header[2])
    return content(channel, tail, nbytes)


@kernel
def publish(channel: int, tail: int, nbytes: int) -> int:
    """Let the receiver see the fragment that was begun; the new tail."""
    end = tail + footprint(nbytes)
    store_release(channel + CHANNEL_TAIL, end)
    return end


@kernel
def available(channel: int, head: int) -> int:
    """Bytes behind ``head``; ``BROKEN`` when the sender's tail cannot be."""
    count = load_acquire(channel + CHANNEL_TAIL) - head
    if 0 <= count <= RING_BYTES and count % RING_HEADER_BYTES == 0:
        return int(count)
    return BROKEN


@kernel
def header_word(channel: int, head: int, index: int) -> int:
    """A word of the fragment's header: kind, message length, fragment length, immediate data."""
    return int(load_acquire(channel + CHANNEL_RING + (head & _MASK) + 8 * index))


@kernel
def take(channel: int, head: int, target: int, nbytes: int) -> int:
    """Copy a fragment of checked length out and give its space back; the new head."""
    source, first = content(channel, head, nbytes)
    copy(target, source, first)
    copy(target + first, channel + CHANNEL_RING, nbytes - first)
    return skip(channel, head, nbytes)


@kernel
def skip(channel: int, head: int, nbytes: int) -> int:
    """Give the space of a fragment back; the new head."""
    end = head + footprint(nbytes)
    store_release(channel + CHANNEL_HEAD, end)
    return end
