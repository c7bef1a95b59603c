"""memcached over a Unix socket, by its meta commands.

What is measured: a put from the first byte sent to the last HD (stored), one for every value;
a get from the request to the last byte of the last block in its row. As with Redis, nothing is
copied in the client but by the system, the blocks lie in as many rows as ours, and neither side
makes checksums; our agent does, of each that is stored.

Puts are of the same keys again after ``flush_all``, which makes them new to the server: it takes
a fresh item, reads the value from the socket straight into it, and only then frees the expired
one. So puts go around the same slabs, warm but larger than a core's cache, as ours go around
their slots; keys never used before would be slower, since they would touch new memory until
``-m`` is reached. A put is one copy into the socket and one out of it, on two cores at once, as
is a get. Measured and no faster: TCP instead of the Unix socket (0.5 to 0.7), a larger send buffer
at the server (1.0), gets a few at a time (1.0).
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.bench.peers.interface import Keys
from emulator.bench.peers.streams import ReplyReader, send_all
from emulator.bench.peers.unix_server import CR_LF, UnixServer

MEMCACHED = "memcached"
_MAX_ITEM = "8m"
_MEMORY_MIB = "4096"


class MetaReplies:
    """Reads replies of meta commands, each of the kind that is expected."""

    def __init__(self, reader: ReplyReader) -> None:
        self._reader = reader

    def stored(self, count: int) -> None:
        """``count`` times HD."""
        for _ in range(count):
            self._require(self._reader.line(), b"HD")

    def block(self, row: NDArray[np.uint8]) -> None:
        """One value, as long as ``row``, into it."""
        self._require(self._reader.line(), b"VA %d" % row.nbytes)
        self._reader.into(row.data)
        self._reader.expect(b"\r\n")

    def hits(self, count: int) -> int:
        """``count`` replies HD (there) or EN (not there); how many are HD."""
        text = self._reader.words(count, 4)
        hits = text.count(b"HD\r\n")
        if hits + text.count(b"EN\r\n") != count:
            raise ConnectionError(f"the server replied {text[:200]!r}")
        return hits

    def ok(self) -> None:
        """OK of a classic command."""
        self._require(self._reader.line(), b"OK")

    @staticmethod
    def _require(line: bytes, wanted: bytes) -> None:
        # Behind HD and VA come the flags that were asked for: none.
        if line.rstrip() != wanted:
            raise ConnectionError(f"the server replied {line[:200]!r}")


class MemcachedStore(UnixServer):
    """A server with one worker thread for its one client, on one raw socket."""

    def __init__(self) -> None:
        super().__init__(MEMCACHED, "memcached", _arguments)
        self._replies = MetaReplies(self._reader)

    def put(self, keys: Keys, rows: NDArray[np.uint8]) -> float:
        """Pipelined sets, the blocks gathered by the system and not copied here."""
        start = time.perf_counter()
        parts: list[bytes | memoryview] = []
        for key, row in zip(keys, rows, strict=True):
            parts += [b"ms %b %d\r\n" % (_text(key), row.nbytes), memoryview(row), CR_LF]
        send_all(self._socket, parts)
        self._replies.stored(len(keys))
        return time.perf_counter() - start

    def get(self, keys: Keys, rows: NDArray[np.uint8]) -> float:
        """Pipelined gets, each block read from the socket into its row."""
        start = time.perf_counter()
        self._socket.sendall(b"".join(b"mg %b v\r\n" % _text(key) for key in keys))
        for row in rows[: len(keys)]:
            self._replies.block(row)
        return time.perf_counter() - start

    def exist(self, keys: Keys) -> tuple[int, float]:
        """Pipelined gets of no value, which the caller is not charged for writing."""
        requests = b"".join(b"mg %b\r\n" % _text(key) for key in keys)
        start = time.perf_counter()
        self._socket.sendall(requests)
        hits = self._replies.hits(len(keys))
        return hits, time.perf_counter() - start

    def clear(self) -> None:
        """Expire everything."""
        self._socket.sendall(b"flush_all\r\n")
        self._replies.ok()


def _text(key: bytes) -> bytes:
    """A key without the blanks and control characters that the protocol cannot carry."""
    return key.hex().encode()


def _arguments(_folder: Path, socket: Path) -> list[str]:
    """Room for whole blocks, and no thread that is not needed."""
    arguments = ["-s", str(socket), "-I", _MAX_ITEM, "-m", _MEMORY_MIB, "-t", "1"]
    return [*arguments, "-u", "root"]
