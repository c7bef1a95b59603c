"""Bursts for links: fill one for a peer, and read back what arrived."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.link.frames import FRAME, Burst, Link
from emulator.link.gid import gid_halves

PATIENCE_MS = 10_000
"""How long a test waits for what must come; only a failing test waits so long."""


def descriptor_to(sender: Link, receiver: Link) -> Any:
    """The address fields of a frame between two links."""
    frame = np.zeros(1, FRAME).view(np.recarray)[0]
    frame.src_hi, frame.src_lo = gid_halves(sender.gid)
    frame.dst_hi, frame.dst_lo = gid_halves(receiver.gid)
    frame.src_port = sender.udp_port
    frame.dst_port = receiver.udp_port
    frame.ip_frag = 0x4000
    return frame


def burst_to(receivers: Link | Sequence[Link], payloads: Sequence[bytes], sender: Link) -> Burst:
    """A burst with one frame a payload; several receivers take turns."""
    peers = receivers if isinstance(receivers, Sequence) else [receivers]
    burst = Burst(max(1, len(payloads)), max(1, sum(map(len, payloads))))
    for index, payload in enumerate(payloads):
        assert burst.append(payload, descriptor_to(sender, peers[index % len(peers)]))
    return burst


def receive_once(link: Link, now: int = 0, frames: int = 1024) -> list[bytes]:
    """What one call of ``receive`` returns."""
    burst = Burst(frames, 1 << 20)
    count = link.receive(burst, now)
    assert count == burst.count
    return [burst.payload(index) for index in range(count)]


def wait_readable(link: Link) -> None:
    """Return when the link has something to receive; fail when nothing comes."""
    poller = select.poll()
    poller.register(link.fileno(), select.POLLIN)
    assert poller.poll(PATIENCE_MS), "nothing arrives"


def receive_frames(link: Link, count: int, frames: int = 1024) -> list[bytes]:
    """The next ``count`` frames of a link, and what came with the last of them."""
    payloads: list[bytes] = []
    while len(payloads) < count:
        wait_readable(link)
        payloads += receive_once(link, frames=frames)
    return payloads


def receive_flood_of_empty(receiver: Link, frames: int) -> list[list[bytes]]:
    """What three calls return after twenty empty datagrams and a last one that is not."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for payload in [b""] * 20 + [b"end"]:
            stranger.sendto(payload, ("127.0.0.1", receiver.udp_port))
    wait_readable(receiver)
    return [receive_once(receiver, frames=frames) for _ in range(3)]
