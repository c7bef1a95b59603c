"""The part of RESP2 that the benchmarks need: arrays of bulk strings out, few replies in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emulator.bench.peers.streams import ReplyReader


def request_head(words: int, *heads: bytes) -> bytes:
    """The beginning of a request of ``words`` words, of which ``heads`` come first."""
    return b"*%d\r\n" % words + b"".join(bulk(head) for head in heads)


def bulk(word: bytes) -> bytes:
    """A word of a request."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def request(*words: bytes) -> bytes:
    """A whole request."""
    return request_head(len(words), *words)


class RespReplies:
    """Reads replies, each of the kind that is expected; everything else is an error."""

    def __init__(self, reader: ReplyReader) -> None:
        self._reader = reader

    def ok(self, count: int = 1) -> None:
        """``count`` times OK."""
        for _ in range(count):
            self._require(self._reader.line(), b"+OK")

    def ones(self, count: int) -> int:
        """``count`` integer replies of one digit, 0 or 1; how many are 1."""
        text = self._reader.words(count, 4)
        ones = text.count(b":1\r\n")
        if ones + text.count(b":0\r\n") != count:
            self._fail(text)
        return ones

    def block(self, row: NDArray[np.uint8]) -> None:
        """One bulk string, as long as ``row``, into it."""
        self._require(self._reader.line(), b"$%d" % row.nbytes)
        self._reader.into(row.data)
        self._reader.expect(b"\r\n")

    def _require(self, line: bytes, wanted: bytes) -> None:
        if line != wanted:
            self._fail(line)

    @staticmethod
    def _fail(line: bytes) -> None:
        raise ConnectionError(f"the server replied {line[:200]!r}")
