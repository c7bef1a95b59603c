"""How devices of one host find each other: datagrams that carry file descriptors.

Each device has a socket named by its GID, and another one, its bell. A message says who sent it
by the name that its socket is bound to and by the kernel's credentials, which cannot be forged.
"""

from __future__ import annotations

import array
import os
import secrets
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from kvlane.errors import VerbsError

GID_PREFIX = bytes.fromhex("fd6b766c616e6500")
"""Local to the host: no network has an address like that (RFC 4193)."""

_NAME = b"\0kvlane-pcie-"
_BELL = b"-bell"
_MESSAGE = struct.Struct("<8sqqqq")
_MAGIC = b"kvlane\0\2"
_CREDENTIALS = struct.Struct("iii")
_MAX_FDS = 2
_ANCILLARY_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4 * _MAX_FDS)


class Kind(IntEnum):
    """What a message is about."""

    CONNECT = 1
    """Numbers of the sending and of the receiving queue pair, and an address in the sender's
    process; with channel and board."""
    MAP = 2
    """Id of a shared memory; with its file."""
    UNMAP = 3
    """Id of a shared memory that is no more."""


@dataclass(frozen=True, slots=True)
class Message:
    """What one device tells another."""

    kind: Kind
    first: int
    second: int = 0
    third: int = 0

    def encode(self) -> bytes:
        """The datagram."""
        return _MESSAGE.pack(_MAGIC, self.kind, self.first, self.second, self.third)

    @classmethod
    def decode(cls, data: bytes) -> Message | None:
        """The message in a datagram; ``None`` when it holds none of this version."""
        if len(data) != _MESSAGE.size:
            return None
        magic, kind, *numbers = _MESSAGE.unpack(data)
        if magic != _MAGIC or kind not in list(Kind):
            return None
        return cls(Kind(kind), *numbers)


@dataclass(frozen=True, slots=True)
class Received:
    """A message, who sent it, and the descriptors that came along; whoever takes it closes
    them."""

    message: Message
    gid: bytes
    pid: int
    fds: tuple[int, ...]


def bell_name(gid: bytes) -> bytes:
    """Name of a device's bell."""
    return _name(gid) + _BELL


def _name(gid: bytes) -> bytes:
    return _NAME + gid.hex().encode()


def is_local(gid: bytes) -> bool:
    """Whether a GID is that of a device of this kind."""
    return len(gid) == 16 and gid.startswith(GID_PREFIX)


class ControlSocket:
    """The sockets of a device, under a new GID."""

    def __init__(self) -> None:
        self.gid = GID_PREFIX + secrets.token_bytes(16 - len(GID_PREFIX))
        self._socket = _bound(_name(self.gid))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._bell = _bound(bell_name(self.gid))
        self._backlog: deque[tuple[bytes, bytes, tuple[int, ...]]] = deque()

    def fileno(self) -> int:
        """Readable when there are messages."""
        return self._socket.fileno()

    @property
    def bell_fd(self) -> int:
        """Readable when a peer rang, and what this device rings with."""
        return self._bell.fileno()

    @property
    def has_backlog(self) -> bool:
        """Whether messages wait because a receiver's queue was full."""
        return bool(self._backlog)

    def send(self, gid: bytes, message: Message, fds: Sequence[int] = ()) -> None:
        """Send now, or after those that wait; ``VerbsError`` when there is no such device."""
        if not self._backlog and self._try(gid, message.encode(), fds):
            return
        self._backlog.append((gid, message.encode(), tuple(os.dup(fd) for fd in fds)))

    def flush(self) -> None:
        """Send what waits, as far as it goes."""
        while self._backlog:
            gid, data, fds = self._backlog[0]
            try:
                if not self._try(gid, data, fds):
                    return
            except VerbsError:
                pass  # the receiver is gone, and its death is seen elsewhere
            self._backlog.popleft()
            _close_all(fds)

    def _try(self, gid: bytes, data: bytes, fds: Sequence[int]) -> bool:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._socket.sendmsg([data], ancillary, socket.MSG_NOSIGNAL, _name(gid))
        except BlockingIOError:
            return False
        except OSError as error:
            raise VerbsError(
                f"no pcie device with GID {gid.hex()} on this host ({error.strerror}): both ends "
                f"need link: pcie, and one host and network namespace"
            ) from error
        return True

    def receive(self) -> Iterator[Received]:
        """The messages that are there, of processes of this user or of root."""
        while True:
            try:
                data, ancillary, flags, address = self._socket.recvmsg(
                    _MESSAGE.size + 1, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            pid, uid, fds = _parse(ancillary)
            message = Message.decode(data)
            gid = _gid_of(address)
            trusted = uid in (0, os.geteuid())
            if message is None or gid is None or not trusted or flags & socket.MSG_TRUNC:
                _close_all(fds)
                continue
            yield Received(message, gid, pid, fds)

    def close(self) -> None:
        """Give the names back."""
        for _, _, fds in self._backlog:
            _close_all(fds)
        self._backlog.clear()
        self._socket.close()
        self._bell.close()


def _bound(name: bytes) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    made.bind(name)
    return made


def _parse(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int, tuple[int, ...]]:
    """Process, user and descriptors."""
    pid, uid, fds = -1, -1, array.array("i")
    for level, kind, data in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_CREDENTIALS:
            pid, uid, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
        elif kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) // 4 * 4])
    return pid, uid, tuple(fds)


def _gid_of(address: object) -> bytes | None:
    """The GID in the name that a sender is bound to."""
    if not isinstance(address, bytes) or not address.startswith(_NAME):
        return None
    try:
        gid = bytes.fromhex(address[len(_NAME) :].decode())
    except ValueError:
        return None
    # Another spelling of the same number is another socket's name.
    return gid if is_local(gid) and address == _name(gid) else None


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
