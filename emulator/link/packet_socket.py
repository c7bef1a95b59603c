"""A packet socket for RoCEv2 on one interface, with a call for a whole burst either way."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from typing import Any

import numpy as np

from emulator.link._raw_kernels import HEADER_SLOT_BYTES, VECTORS_PER_MESSAGE
from emulator.link._socket_kernels import MESSAGE, VECTOR
from emulator.link.packet_filter import ROCE_ONLY, attach_filter
from emulator.link.socket_buffer import TRUESIZE_FACTOR, enlarge_buffers
from kvlane.errors import ConfigError
from kvlane.verbs.records import new_records

_EVERY_PROTOCOL = 0x0003
"""ETH_P_ALL of linux/if_ether.h; the filter takes IPv4 and IPv6."""
_libc = ctypes.CDLL(None, use_errno=True)
for _call in (_libc.sendmmsg, _libc.recvmmsg):
    _call.restype = ctypes.c_int
_libc.sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
_libc.recvmmsg.argtypes = (*_libc.sendmmsg.argtypes, ctypes.c_void_p)


class PacketSocket:
    """Sends and receives whole Ethernet frames by ``sendmmsg`` and ``recvmmsg``."""

    def __init__(self, interface: str, buffer_bytes: int) -> None:
        """``ConfigError`` without the privilege."""
        if struct.calcsize("P") != 8:
            raise ConfigError("raw link: it needs a 64-bit machine; take the udp link")
        try:
            # Protocol 0: nothing comes before the filter is in place.
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        except PermissionError:
            raise ConfigError(
                "raw link: packet sockets need the privilege CAP_NET_RAW; run as root, or in a "
                "unit with AmbientCapabilities=CAP_NET_RAW, or take the udp link"
            ) from None
        try:
            granted = enlarge_buffers(self._socket, buffer_bytes)
            attach_filter(self._socket, ROCE_ONLY)
            self._socket.bind((interface, _EVERY_PROTOCOL))
        except BaseException:
            self._socket.close()
            raise
        self.window_bytes = granted // TRUESIZE_FACTOR
        """What its buffer surely holds."""

    def fileno(self) -> int:
        """The descriptor; -1 after ``close``."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close."""
        self._socket.close()

    def send(self, messages: int, count: int) -> tuple[int, int]:
        """Send messages at an address: how many went, and the errno of the next or 0."""
        sent: int = _libc.sendmmsg(self.fileno(), messages, count, socket.MSG_DONTWAIT)
        if sent >= 0:
            return sent, 0
        return 0, ctypes.get_errno()

    def receive(self, messages: int, count: int) -> int:
        """Receive into messages at an address; how many, 0 when there is nothing or an error."""
        received: int = _libc.recvmmsg(self.fileno(), messages, count, socket.MSG_DONTWAIT, None)
        return max(0, received)


class Outbox:
    """What ``sendmmsg`` reads: for each frame a message, two vectors and room for headers."""

    def __init__(self, frames: int, port: Any) -> None:
        """Room for a burst of ``frames``; ``port`` is the kernels' record, told of it."""
        self.frames = frames
        self.messages = new_records(MESSAGE, frames)
        self.fates = np.zeros(frames, np.int64)
        self.wire = np.zeros(frames, np.int64)
        self._headers = np.zeros(frames * HEADER_SLOT_BYTES, np.uint8)
        self._vectors = _vectors(self.messages, VECTORS_PER_MESSAGE)
        port.messages, port.vectors = self.messages.ctypes.data, self._vectors.ctypes.data
        port.headers = self._headers.ctypes.data
        port.fates, port.wire = self.fates.ctypes.data, self.wire.ctypes.data


class Inbox:
    """What ``recvmmsg`` fills: for each slot of an arena a message and a vector."""

    def __init__(self, slots: int, port: Any) -> None:
        """Room for ``slots``; ``port`` is the kernels' record, told of it."""
        self.slots = slots
        self.messages = new_records(MESSAGE, slots)
        self._vectors = _vectors(self.messages, 1)
        port.inbox = self.messages.ctypes.data


def _vectors(messages: Any, per_message: int) -> Any:
    """Vectors for messages, which are told where theirs are."""
    vectors = new_records(VECTOR, len(messages) * per_message)
    step = per_message * VECTOR.itemsize
    messages.vectors[:] = vectors.ctypes.data + step * np.arange(len(messages))
    messages.vector_count[:] = per_message
    return vectors


def error_text(code: int) -> str:
    """What an errno means for a frame that was not sent."""
    if code == errno.EMSGSIZE:
        return "it is longer than the interface's MTU"
    return os.strerror(code)
