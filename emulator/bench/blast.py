"""The limit of the UDP link: a windowed blast of datagrams between two processes.

No protocol, no checksum, no copy beyond the sockets' own: segments of a full RoCEv2 frame
by UDP_SEGMENT and UDP_GRO, and a byte count back for every few reads, so that the sender
never has more under way than the window and the socket buffer loses nothing.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

UDP_SEGMENT = 103
UDP_GRO = 104
SEGMENT_BYTES = 4116
"""A WRITE MIDDLE of 4 KiB: BTH, payload, ICRC."""
SEGMENTS_PER_CALL = 15
WINDOW_BYTES = 512 * 1024
_SOCKET_BUFFER_BYTES = 4 << 20
_TIMEOUT_S = 10.0
_CREDIT = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class BlastResult:
    """What one blast moved."""

    nbytes: int
    seconds: float

    @property
    def gigabytes_per_second(self) -> float:
        """10^9 bytes a second, headers included."""
        return self.nbytes / self.seconds / 1e9


def _udp_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.settimeout(_TIMEOUT_S)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
    return sock


def _drain(port_pipe: Connection, total: int) -> None:
    """The receiving process: read ``total`` bytes, and tell the sender how far it is."""
    with _udp_socket() as sock:
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        port_pipe.send(sock.getsockname()[1])
        buffer = bytearray(65536)
        received = told = 0
        while received < total:
            count, _, _, sender = sock.recvmsg_into([buffer], 64)
            received += count
            if received - told >= WINDOW_BYTES // 4 or received >= total:
                told = received
                sock.sendto(_CREDIT.pack(received), sender)


def blast(total: int) -> BlastResult:
    """Send ``total`` bytes, rounded up to whole calls, to another process and time it."""
    call = memoryview(bytearray(SEGMENT_BYTES * SEGMENTS_PER_CALL))
    total = -(-total // len(call)) * len(call)
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    receiver = context.Process(target=_drain, args=(there, total), daemon=True)
    receiver.start()
    try:
        with _udp_socket() as sock:
            if not here.poll(60):
                raise TimeoutError("the receiving process of the blast did not start")
            address = ("127.0.0.1", here.recv())
            segment = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("<H", SEGMENT_BYTES))]
            start = time.perf_counter()
            sent = confirmed = 0
            while confirmed < total:
                while sent < total and sent + len(call) - confirmed <= WINDOW_BYTES:
                    sent += sock.sendmsg([call], segment, 0, address)
                confirmed = _CREDIT.unpack(sock.recv(_CREDIT.size))[0]
            return BlastResult(total, time.perf_counter() - start)
    finally:
        receiver.join(_TIMEOUT_S)
        if receiver.is_alive():
            receiver.kill()
