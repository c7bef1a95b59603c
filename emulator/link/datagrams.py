"""Frames as single values, for links that keep them in queues instead of sockets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from emulator.link.frames import Burst


class Datagram(NamedTuple):
    """A copy of one frame."""

    payload: bytes
    """BTH to ICRC."""
    descriptor: Any
    """Its ``FRAME`` record; offset and length in it mean nothing any more."""


def datagrams_of(burst: Burst) -> Iterator[Datagram]:
    """Copy the frames out of a burst, in order."""
    frames = burst.frames.view(np.ndarray)
    for index in range(burst.count):
        yield Datagram(burst.payload(index), frames[index].copy())


def fill(burst: Burst, queue: deque[Datagram]) -> int:
    """Move datagrams from the head of a queue into a burst while they fit; how many are lost.

    One that does not even fit an empty burst is lost, or it would block all others.
    """
    lost = 0
    while queue:
        if not burst.append(queue[0].payload, queue[0].descriptor):
            if burst.count:
                break
            lost += 1
        queue.popleft()
    return lost
