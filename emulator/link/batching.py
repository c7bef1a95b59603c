"""How a UDP link moves many datagrams by one call: what is wanted, and what the kernel has."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from emulator.link._udp_kernels import IPPROTO_UDP, UDP_GRO, UDP_SEGMENT
from kvlane.errors import ConfigError

AUTO = "auto"
SEGMENTS = "segments"
MESSAGES = "messages"
BATCHING = (AUTO, SEGMENTS, MESSAGES)
BATCHING_DOC = (
    "How the udp link moves many packets by one call: 'segments' lets the kernel cut and join them "
    "(UDP_SEGMENT, UDP_GRO), 'messages' lists them (sendmmsg, recvmmsg), which every kernel and "
    "interface can do. 'auto' takes segments where the kernel has them. What an interface refuses "
    "as segments goes as messages."
)


class Batching(NamedTuple):
    """What is in use when a link is opened."""

    segmentation: bool
    """Runs of equal frames leave as segments of one message; otherwise all as messages."""
    coalescing: bool
    """One message may bring several frames; otherwise each is one of its own."""
    why: str
    """For people."""

    @property
    def is_best(self) -> bool:
        """Whether the kernel cuts and joins both ways."""
        return self.segmentation and self.coalescing

    def __str__(self) -> str:
        sending = "UDP_SEGMENT" if self.segmentation else "sendmmsg"
        receiving = "UDP_GRO" if self.coalescing else "recvmmsg"
        return f"sends by {sending}, receives by {receiving}: {self.why}"


def choose_batching(udp: socket.socket, wanted: str) -> Batching:
    """Ask the kernel, and set the socket up; ``ConfigError`` when it lacks what is wanted."""
    if wanted not in BATCHING:
        raise ConfigError(f"batching: {wanted!r} is unknown; one of {', '.join(BATCHING)}")
    if wanted == MESSAGES:
        return Batching(False, False, "messages were asked for")
    # A segment size of 0 is what sockets have anyway.
    refusals = {
        name: reason
        for name, option, value in (("UDP_SEGMENT", UDP_SEGMENT, 0), ("UDP_GRO", UDP_GRO, 1))
        if (reason := _refusal(udp, option, value))
    }
    if refusals and wanted == SEGMENTS:
        raise ConfigError(
            f"batching: the kernel has no {' and no '.join(refusals)}; write {AUTO} or {MESSAGES}"
        )
    why = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
    return Batching(
        "UDP_SEGMENT" not in refusals,
        "UDP_GRO" not in refusals,
        why or "the kernel has both",
    )


def _refusal(udp: socket.socket, option: int, value: int) -> str:
    """Why the kernel does not take an option; empty when it does."""
    try:
        udp.setsockopt(IPPROTO_UDP, option, value)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""
