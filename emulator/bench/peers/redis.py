"""Redis, and Valkey which speaks the same, over a Unix socket."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.bench.peers.interface import Keys
from emulator.bench.peers.processes import Server, find_program
from emulator.bench.peers.resp import RespReplies, bulk, request, request_head
from emulator.bench.peers.streams import ReplyReader, deepen, send_all

REDIS = "redis"
_CR_LF = memoryview(b"\r\n")


class RedisStore:
    """A server without persistence and a client on one raw socket."""

    def __init__(self, name: str = REDIS, program: str = "redis-server") -> None:
        self.name = name
        path = find_program(program, f"install {program} (make bench-peers)")
        self._server = Server(name, lambda folder: [path, *_arguments(folder)])
        try:
            self._socket = self._server.connect(str(self._server.folder / "socket"))
        except BaseException:
            self._server.close()
            raise
        deepen(self._socket)
        self._replies = RespReplies(ReplyReader(self._socket))

    def put(self, keys: Keys, rows: NDArray[np.uint8]) -> float:
        """Pipelined SETs, the blocks gathered by the system and not copied here."""
        start = time.perf_counter()
        parts: list[bytes | memoryview] = []
        for key, row in zip(keys, rows, strict=True):
            parts += [request_head(3, b"SET", key) + b"$%d\r\n" % row.nbytes, memoryview(row)]
            parts.append(_CR_LF)
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

    def pause(self) -> None:
        """Stop the server."""
        self._server.pause()

    def resume(self) -> None:
        """Let it run."""
        self._server.resume()

    def close(self) -> None:
        """End client and server."""
        self._socket.close()
        self._server.close()


def _arguments(folder: Path) -> list[str]:
    """No port, no persistence, nothing that the server does beside its work."""
    return [
        *("--port", "0", "--unixsocket", str(folder / "socket"), "--dir", str(folder)),
        *("--save", "", "--appendonly", "no", "--activedefrag", "no"),
    ]
