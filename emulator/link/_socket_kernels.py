"""Messages of the socket calls, as structs of a 64-bit machine, and the calls themselves."""

from __future__ import annotations

import socket

import numpy as np
from numba import types

from kvlane.jit import external, kernel
from kvlane.rawmem import bytes_at, record_accessor

VECTOR = np.dtype([("base", "i8"), ("nbytes", "i8")])
"""``struct iovec``."""
MESSAGE = np.dtype(
    [
        ("name", "i8"),
        ("name_bytes", "i8"),
        ("vectors", "i8"),
        ("vector_count", "i8"),
        ("control", "i8"),
        ("control_bytes", "i8"),
        ("result_flags", "i4"),
        ("padding", "i4"),
        ("received", "u4"),
        ("more_padding", "u4"),
    ]
)
"""``struct mmsghdr``, which begins with a ``struct msghdr``."""
CONTROL = np.dtype(
    [("nbytes", "i8"), ("level", "i4"), ("kind", "i4"), ("value", "i4"), ("padding", "i4")]
)
"""``struct cmsghdr`` with one value of at most four bytes."""
MESSAGE_BYTES = MESSAGE.itemsize
CONTROL_BYTES = CONTROL.itemsize
CONTROL_HEADER_BYTES = 16
NAME_BYTES = 16
"""``struct sockaddr_in``."""

TRUNCATED = 0x20
"""MSG_TRUNC."""

_AF_INET = int(socket.AF_INET)
_PORT_AT = 2
_PORT_AND_ADDRESS_BYTES = 6

message_at = record_accessor(MESSAGE)
vector_at = record_accessor(VECTOR)
control_at = record_accessor(CONTROL)
_int_at = record_accessor(np.dtype([("value", "i4")]))
_short_at = record_accessor(np.dtype([("value", "u2")]))

_sendmsg = external("sendmsg", types.int64(types.int32, types.int64, types.int32))
_recvmsg = external("recvmsg", types.int64(types.int32, types.int64, types.int32))
_sendmmsg = external("sendmmsg", types.int32(types.int32, types.int64, types.uint32, types.int32))
_recvmmsg = external(
    "recvmmsg", types.int32(types.int32, types.int64, types.uint32, types.int32, types.int64)
)
_errno_location = external("__errno_location", types.int64())


@kernel
def send_message(fd: int, message: int) -> int:
    """Send what a MESSAGE describes; 0, or the errno."""
    if _sendmsg(int(fd), int(message), 0) >= 0:
        return 0
    return int(_int_at(_errno_location(), 0).value)


@kernel
def receive_message(fd: int, message: int) -> int:
    """Receive into what a MESSAGE describes: bytes, all that there were; or -1.

    TRUNCATED among the ``result_flags`` tells that they did not fit.
    """
    return int(_recvmsg(int(fd), int(message), TRUNCATED))


@kernel
def send_messages(fd: int, messages: int, count: int) -> int:
    """Send what a table of MESSAGE describes, by one call: how many it took, or the errno below 0.

    A message that cannot be sent ends the call; its errno comes when it is the first.
    """
    sent = int(_sendmmsg(int(fd), int(messages), int(count), 0))
    if sent > 0:
        return sent
    return -int(_int_at(_errno_location(), 0).value)


@kernel
def receive_messages(fd: int, messages: int, count: int) -> int:
    """Receive into what a table of MESSAGE describes, by one call: how many came, or -1.

    ``received`` of each is all the bytes that there were, as with ``receive_message``.
    """
    return int(_recvmmsg(int(fd), int(messages), int(count), TRUNCATED, 0))


@kernel
def put_name(name: int, number: int) -> None:
    """Write a socket (as in ``_addressing_kernels``) as ``struct sockaddr_in``."""
    family = _short_at(name, 0)
    family.value = _AF_INET
    data = bytes_at(name + _PORT_AT, _PORT_AND_ADDRESS_BYTES)
    data[0] = number >> 8 & 0xFF
    data[1] = number & 0xFF
    for i in range(4):
        data[2 + i] = number >> (40 - 8 * i) & 0xFF


@kernel
def take_name(name: int) -> int:
    """The socket that a ``struct sockaddr_in`` names."""
    data = bytes_at(name + _PORT_AT, _PORT_AND_ADDRESS_BYTES)
    number = 0
    for i in range(4):
        number = number << 8 | np.int64(data[2 + i])
    return int(number << 16 | np.int64(data[0]) << 8 | np.int64(data[1]))


@kernel
def put_control_int(controls: int, index: int, level: int, kind: int, value: int) -> None:
    """Write a control message with an ``int``."""
    control = control_at(controls, index)
    control.nbytes = CONTROL_HEADER_BYTES + 4
    control.level = level
    control.kind = kind
    control.value = value


@kernel
def put_control_short(controls: int, index: int, level: int, kind: int, value: int) -> None:
    """Write a control message with an unsigned 16-bit number."""
    control = control_at(controls, index)
    control.nbytes = CONTROL_HEADER_BYTES + 2
    control.level = level
    control.kind = kind
    short = _short_at(controls + index * CONTROL_BYTES + CONTROL_HEADER_BYTES, 0)
    short.value = value


@kernel
def control_byte(controls: int, index: int) -> int:
    """The value of a control message with a single byte."""
    data = bytes_at(controls + index * CONTROL_BYTES + CONTROL_HEADER_BYTES, 1)
    value: int = np.int64(data[0])
    return value
