"""The endpoint with every ICRC that it sends made wrong: the control of the whole matrix.

Runs on the emulator only, whose raw link it gets between.
"""

from __future__ import annotations

import sys

from emulator.link.frames import Burst
from emulator.link.raw import RawLink
from tests.interop import endpoint

_send = RawLink.send


def _send_spoiled(link: RawLink, burst: Burst) -> int:
    """Change one bit of the last byte, and back where the link wants the frame again."""
    _flip(burst, 0)
    accepted = _send(link, burst)
    _flip(burst, accepted)
    return accepted


def _flip(burst: Burst, first: int) -> None:
    for index in range(first, burst.count):
        last = int(burst.frames.offset[index] + burst.frames.length[index]) - 1
        burst.arena[last] ^= 1


if __name__ == "__main__":
    RawLink.send = _send_spoiled  # type: ignore[method-assign]
    endpoint.serve(sys.argv[1], int(sys.argv[2]))
