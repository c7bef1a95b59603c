"""Redis, and Valkey which speaks the same, over a Unix socket."""

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
        """One MGET, each block read from the socket into its row."""
        start = time.perf_counter()
        self._socket.sendall(request(b"MGET", *keys))
        self._replies.blocks(rows)
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
