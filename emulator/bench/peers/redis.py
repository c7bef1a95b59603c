"""Redis, and Valkey which speaks the same, over a Unix socket.

What is measured: a put from the first byte sent to the last OK, one for every value, and a get
from the request to the last byte of the last block in its row. Blocks go from and to memory of
the client's in as many rows as ours, and nothing is copied in the client but by the system.
Puts are of keys that the server does not have: FLUSHALL comes before, untimed, and leaves warm
memory to the allocator. Neither side makes checksums of blocks; our agent does, of each that is
stored. Measured and no faster: TCP instead of the Unix socket (0.75), a larger send buffer at
the server (1.0), one MGET for the batch (0.55 to 1: it copies all before it sends any).
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.bench.peers.interface import Keys
from emulator.bench.peers.resp import RespReplies, bulk, request, request_head
from emulator.bench.peers.streams import send_all
from emulator.bench.peers.unix_server import CR_LF, UnixServer

REDIS = "redis"
_GETS_AHEAD = 3
"""Requests that the server has at a time: it writes a block while the client reads another."""


class RedisStore(UnixServer):
    """A server without persistence and a client on one raw socket."""

    def __init__(self, name: str = REDIS, program: str = "redis-server") -> None:
        super().__init__(name, program, _arguments)
        self._replies = RespReplies(self._reader)

    def put(self, keys: Keys, rows: NDArray[np.uint8]) -> float:
        """Pipelined SETs, the blocks gathered by the system and not copied here."""
        start = time.perf_counter()
        parts: list[bytes | memoryview] = []
        for key, row in zip(keys, rows, strict=True):
            parts += [request_head(3, b"SET", key) + b"$%d\r\n" % row.nbytes, memoryview(row)]
            parts.append(CR_LF)
        send_all(self._socket, parts)
        self._replies.ok(len(keys))
        return time.perf_counter() - start

    def get(self, keys: Keys, rows: NDArray[np.uint8]) -> float:
        """GETs, a few ahead, each block read from the socket into its row."""
        start = time.perf_counter()
        requests = [request(b"GET", key) for key in keys]
        self._socket.sendall(b"".join(requests[:_GETS_AHEAD]))
        for number, row in enumerate(rows[: len(keys)], _GETS_AHEAD):
            if number < len(requests):
                self._socket.sendall(requests[number])
            self._replies.block(row)
        return time.perf_counter() - start

    def get_one(self, key: bytes, row: NDArray[np.uint8]) -> None:
        """One GET."""
        self._socket.sendall(b"*2\r\n$3\r\nGET\r\n" + bulk(key))
        self._replies.block(row)

    def exist(self, keys: Keys) -> tuple[int, float]:
        """A pipeline of EXISTS, which the caller is not charged for writing."""
        requests = b"".join(request(b"EXISTS", key) for key in keys)
        start = time.perf_counter()
        self._socket.sendall(requests)
        there = self._replies.ones(len(keys))
        return there, time.perf_counter() - start

    def clear(self) -> None:
        """FLUSHALL."""
        self._socket.sendall(request(b"FLUSHALL"))
        self._replies.ok()


def _arguments(folder: Path, socket: Path) -> list[str]:
    """No port, no persistence, nothing that the server does beside its work."""
    return [
        *("--port", "0", "--unixsocket", str(socket), "--dir", str(folder)),
        *("--save", "", "--appendonly", "no", "--activedefrag", "no"),
    ]
