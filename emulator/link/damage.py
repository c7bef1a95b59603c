"""What a bad link makes of the bytes of a frame. The ICRC has to find all of it."""

from __future__ import annotations

from kvlane.seams import Rng

MAX_SPOILT_BYTES = 16
MAX_TRAILING_BYTES = 16


def flip_bit(payload: bytes, rng: Rng) -> bytes:
    """One bit is another."""
    damaged = bytearray(payload)
    bit = rng.randrange(0, len(payload) * 8)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def spoil_bytes(payload: bytes, rng: Rng) -> bytes:
    """1 to 16 bytes in a row are others."""
    damaged = bytearray(payload)
    count = rng.randrange(1, min(MAX_SPOILT_BYTES, len(payload)) + 1)
    first = rng.randrange(0, len(payload) - count + 1)
    for index in range(first, first + count):
        damaged[index] ^= rng.randrange(1, 256)
    return bytes(damaged)


def cut_short(payload: bytes, rng: Rng) -> bytes:
    """The end is missing; at least one byte is left, for a link carries no empty frame."""
    if len(payload) == 1:
        return flip_bit(payload, rng)
    return payload[: rng.randrange(1, len(payload))]


def append_garbage(payload: bytes, rng: Rng) -> bytes:
    """1 to 16 bytes follow that nobody has sent."""
    count = rng.randrange(1, MAX_TRAILING_BYTES + 1)
    return payload + rng.getrandbits(8 * count).to_bytes(count, "big")


KINDS = (flip_bit, spoil_bytes, cut_short, append_garbage)


def damaged(payload: bytes, rng: Rng) -> bytes:
    """``payload``, at least one byte, with one of the four done to it; each is as likely."""
    return KINDS[rng.randrange(0, len(KINDS))](payload, rng)
