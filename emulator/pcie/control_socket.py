"""How devices of one host find each other: datagrams that carry file descriptors.

Each device has a socket named by its GID, and another one, its bell. A message says who sent it
by the name that its socket is bound to and by the kernel's credentials, which cannot be forged.
What a receiver has not read is charged to the socket that it came from. So that receivers who do
not read hold up nobody else, a message goes by a further socket when the first one is full; to that
one's name only senders of this user and of root are heard.
"""

from __future__ import annotations

import array
import errno
import logging
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from emulator.pcie.backlog import Backlogs, File, Parcel
from emulator.pcie.messages import (
    GID_PREFIX,
    MESSAGE_BYTES,
    Message,
    bell_name,
    new_sender_name,
    read_sender_name,
    socket_name,
)
from kvlane.errors import VerbsError

_log = logging.getLogger(__name__)
_CREDENTIALS = struct.Struct("iii")
_MAX_FDS = 2
_SO_PASSPIDFD, _SCM_PIDFD = 76, 4  # since Linux 6.5; socket has no names for them
_ANCILLARY_BYTES = (
    socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4) + socket.CMSG_SPACE(4 * _MAX_FDS)
)
_SEND_BUFFER_BYTES = 4 << 20
"""As much as the system permits; as most set it up, that is some 500 datagrams."""
_FULL = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS)
"""The receiver's queue, what the system has for messages, or descriptors of this user that are on
their way to processes that do not read: no more than ``ulimit -n`` may be."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message, who sent it, and the descriptors that came along, until ``close``."""

    message: Message
    gid: bytes
    pid: int
    """0: a process in a PID namespace that this one does not see."""
    fds: tuple[int, ...] = ()
    pidfd: int = -1
    """The process; -1 where the system does not tell, or has no descriptor left for it."""
    is_trusted: bool = True
    """Whether it is of this user or of root."""
    has_lost_fds: bool = False
    """Whether there were more descriptors than have come."""

    def close(self) -> None:
        """Close the descriptors."""
        _close_all((*self.fds, self.pidfd))


class ControlSocket:
    """The sockets of a device, under a new GID."""

    def __init__(self) -> None:
        self.gid = GID_PREFIX + secrets.token_bytes(16 - len(GID_PREFIX))
        self._socket = _bound(socket_name(self.gid))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_PASSPIDFD, 1)
        self._bell = _bound(bell_name(self.gid))
        for own in (self._socket, self._bell):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._backlogs = Backlogs(self._try)
        self.dropped = 0
        """Datagrams that were no messages of a device of this kind."""

    def fileno(self) -> int:
        """Readable when there are messages."""
        return self._socket.fileno()

    @property
    def bell_fd(self) -> int:
        """Readable when a peer rang, and what this device rings with."""
        return self._bell.fileno()

    @property
    def backlog_due_ns(self) -> int:
        """When to ``flush`` next, on the monotonic clock; 0 when nothing waits."""
        return self._backlogs.due_ns

    def waiting(self, gid: bytes) -> int:
        """How many messages wait because the receiver's queue was full."""
        return self._backlogs.waiting(gid)

    def send(self, gid: bytes, message: Message, files: Sequence[File] = ()) -> None:
        """Send now, or after those that wait for the same device.

        ``VerbsError`` when there is no such device, ``CapacityError`` when too many wait for it.
        A file that is closed before its message is sent takes the message with it.
        """
        parcel = Parcel(message.encode(), files)
        if gid in self._backlogs or not self._try(gid, parcel):
            self._backlogs.append(gid, parcel, time.monotonic_ns())

    def try_once(self, gid: bytes, message: Message) -> None:
        """Send now, or not at all: to whom nothing is kept for."""
        with suppress(VerbsError):
            self._try(gid, Parcel(message.encode()))

    def flush(self) -> list[bytes]:
        """Send what is due of what waits, as far as it goes; the devices that are no more."""
        return self._backlogs.flush(time.monotonic_ns())

    def drop_backlog(self, gid: bytes) -> None:
        """Forget what waits for a device."""
        self._backlogs.drop(gid)

    def _try(self, gid: bytes, parcel: Parcel) -> bool:
        fds = array.array("i", [file.fd for file in parcel.files])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if fds else []
        if _sent(self._socket, gid, parcel.data, ancillary):
            return True
        try:
            further = _bound(new_sender_name(self.gid))
        except OSError:
            return False  # no descriptor is left for it
        with further:
            return _sent(further, gid, parcel.data, ancillary)

    def receive(self, most: int) -> Iterator[Received]:
        """The messages that are there, up to so many; whoever takes one closes it."""
        for _ in range(most):
            try:
                data, ancillary, flags, address = self._socket.recvmsg(
                    MESSAGE_BYTES + 1, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            pid, uid, pidfd, fds = _parse(ancillary)
            trusted = uid in (0, os.geteuid())
            message, sender = Message.decode(data), read_sender_name(address)
            is_known = sender is not None and (sender.is_main or trusted)
            if message is None or sender is None or not is_known or flags & socket.MSG_TRUNC:
                _close_all((*fds, pidfd))
                self._note_dropped(pid)
                continue
            lost = bool(flags & socket.MSG_CTRUNC)
            yield Received(message, sender.gid, pid, fds, pidfd, trusted, lost)

    def _note_dropped(self, pid: int) -> None:
        self.dropped += 1
        if self.dropped == 1:
            _log.warning(
                "process %d sent what is no message of a pcie device of this version; further "
                "ones are only counted (messages_dropped)",
                pid,
            )

    def close(self) -> None:
        """Give the names back."""
        self._backlogs.clear()
        self._socket.close()
        self._bell.close()


def _sent(
    sender: socket.socket,
    gid: bytes,
    data: bytes,
    ancillary: list[tuple[int, int, array.array[int]]],
) -> bool:
    """Whether a message has gone; not when there is no room for it now. ``VerbsError`` when nobody
    is there."""
    try:
        sender.sendmsg([data], ancillary, socket.MSG_NOSIGNAL, socket_name(gid))
    except OSError as error:
        if error.errno in _FULL:
            return False
        raise VerbsError(
            f"no pcie device with GID {gid.hex()} on this host ({error.strerror}): both ends "
            f"need link: pcie, and one host and network namespace"
        ) from error
    return True


def _bound(name: bytes) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        made.bind(name)
    except OSError:
        made.close()
        raise
    return made


def _parse(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int, int, tuple[int, ...]]:
    """Process, user, pidfd and descriptors."""
    pid, uid, pidfd, fds = -1, -1, -1, array.array("i")
    for level, kind, data in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_CREDENTIALS:
            pid, uid, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
        elif kind == _SCM_PIDFD:
            pidfd = struct.unpack("i", data[:4])[0]  # negative: an errno
        elif kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) // 4 * 4])
    return pid, uid, pidfd, tuple(fds)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)
