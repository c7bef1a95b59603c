"""Replies of text protocols from a socket: lines through a buffer, payloads past it."""

from __future__ import annotations

import socket
from typing import Protocol


class ByteStream(Protocol):
    """The part of a socket that replies are read from."""

    def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0, /) -> int:
        """Read into a buffer."""


_BUFFER_BYTES = 16 * 1024
"""What of a payload comes into it with a line is copied once more, so it is small."""
_SOCKET_BUFFER_BYTES = 4 << 20
_SENDMSG_PARTS = 512
"""Parts of one sendmsg; Linux takes 1,024."""


def deepen(sock: socket.socket) -> None:
    """Let several blocks lie in the socket, for fewer turns between client and server."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)


def send_all(sock: socket.socket, parts: list[bytes | memoryview]) -> None:
    """Send all parts in order, without joining them."""
    pending = [memoryview(part) for part in parts]
    first = 0
    while first < len(pending):
        sent = sock.sendmsg(pending[first : first + _SENDMSG_PARTS])
        while first < len(pending) and sent >= len(pending[first]):
            sent -= len(pending[first])
            first += 1
        if sent:
            pending[first] = pending[first][sent:]


class ReplyReader:
    """Reads lines and payloads of known length.

    A payload that is longer than what is buffered goes from the socket to its place.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def line(self) -> bytes:
        """The next line, without its CR LF."""
        while True:
            stop = self._buffer.find(b"\r\n", self._start, self._end)
            if stop >= 0:
                found = bytes(self._view[self._start : stop])
                self._start = stop + 2
                return found
            self._fill()

    def into(self, target: memoryview) -> None:
        """Exactly as many bytes as ``target`` has."""
        held = min(len(target), self._end - self._start)
        target[:held] = self._view[self._start : self._start + held]
        self._start += held
        while held < len(target):
            count = self._stream.recv_into(target[held:], 0, socket.MSG_WAITALL)
            if count == 0:
                raise ConnectionError("the peer closed the connection within a payload")
            held += count

    def words(self, count: int, width: int) -> bytes:
        """``count`` replies that all have ``width`` bytes, in one piece."""
        got = bytearray(count * width)
        self.into(memoryview(got))
        return bytes(got)

    def expect(self, text: bytes) -> None:
        """Exactly ``text``."""
        got = self.words(1, len(text))
        if got != text:
            raise ConnectionError(f"the peer said {got!r} instead of {text!r}")

    def _fill(self) -> None:
        if self._start:
            held = self._end - self._start
            self._view[:held] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, held
        if self._end == len(self._buffer):
            raise ConnectionError("the peer sent a line without an end")
        count = self._stream.recv_into(self._view[self._end :])
        if count == 0:
            raise ConnectionError("the peer closed the connection within a line")
        self._end += count
