"""What devices of one host tell each other, and the names under which they do."""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

GID_PREFIX = bytes.fromhex("fd6b766c616e6500")
"""Local to the host: no network has an address like that (RFC 4193)."""

_NAME = b"\0kvlane-pcie-"
_BELL = b"-bell"
_SENDER = b"-also-"
_SENDER_DIGITS = 16
_MESSAGE = struct.Struct("<8sqqqq")
_MAGIC = b"kvlane\0\3"
MESSAGE_BYTES = _MESSAGE.size


class Kind(IntEnum):
    """What a message is about."""

    CONNECT = 1
    """Numbers of the sending and of the receiving queue pair, and an address in the sender's
    process; with channel and board."""
    MAP = 2
    """Id of a shared memory; with its file."""
    UNMAP = 3
    """Id of a shared memory that is no more."""
    REFUSE = 4
    """Numbers of the receiving and of the sending queue pair, as CONNECT had them, and the
    ``Refusal``."""


class Refusal(IntEnum):
    """Why a device does not take an introduction."""

    NO_SUCH_QP = 1
    TAKEN = 2
    TOO_MANY_OFFERS = 3
    NO_DESCRIPTORS = 4
    NO_CAPACITY = 5
    BAD_MEMORY = 6
    UNSEEN = 7
    GIVEN_UP = 8
    OTHER_USER = 9


REFUSAL_TEXTS = {
    Refusal.NO_SUCH_QP: "the queue pair is closed",
    Refusal.TAKEN: "the queue pair is connected with another one",
    Refusal.TOO_MANY_OFFERS: "too many peers offer themselves to a queue pair that is not connected"
    " yet; connect its own end",
    Refusal.NO_DESCRIPTORS: "descriptors were lost on the way, since the receiving process has "
    "none left; raise its limit (ulimit -n)",
    Refusal.NO_CAPACITY: "a limit of the receiving device or process is reached; its log has the "
    "details",
    Refusal.BAD_MEMORY: "the memory that was sent is not that of a pcie device of this version",
    Refusal.UNSEEN: "the sending process is in a PID namespace that the receiving one cannot see, "
    "and Linux is older than 6.5; share the PID namespace",
    Refusal.GIVEN_UP: "earlier queue pairs of the two devices were given up; close them first",
    Refusal.OTHER_USER: "the receiving process hears its own user and root only",
}


def refusal_text(number: int) -> str:
    """What a peer's refusal means; it may be one of another version."""
    known = number in REFUSAL_TEXTS
    return REFUSAL_TEXTS[Refusal(number)] if known else f"reason {number}, which is not known here"


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


def socket_name(gid: bytes) -> bytes:
    """Name of the socket that hears a device's messages."""
    return _NAME + gid.hex().encode()


def bell_name(gid: bytes) -> bytes:
    """Name of a device's bell."""
    return socket_name(gid) + _BELL


def new_sender_name(gid: bytes) -> bytes:
    """A name, which nobody can foresee, for one more socket by which a device sends."""
    return socket_name(gid) + _SENDER + secrets.token_hex(_SENDER_DIGITS // 2).encode()


def is_local(gid: bytes) -> bool:
    """Whether a GID is that of a device of this kind."""
    return len(gid) == 16 and gid.startswith(GID_PREFIX)


class SenderName(NamedTuple):
    """What the name says that a sender is bound to."""

    gid: bytes
    is_main: bool
    """Whether it is the device's own, which nobody else can have; anybody may bind the others."""


def read_sender_name(name: object) -> SenderName | None:
    """The device that a sender says it is; ``None`` when it says none."""
    if not isinstance(name, bytes) or not name.startswith(_NAME):
        return None
    device, also, digits = name.partition(_SENDER)
    if also and len(digits) != _SENDER_DIGITS:
        return None
    try:
        gid = bytes.fromhex(device[len(_NAME) :].decode())
    except ValueError:
        return None
    # Another spelling of the same number is another socket's name.
    if not is_local(gid) or device != socket_name(gid):
        return None
    return SenderName(gid, is_main=not also)
