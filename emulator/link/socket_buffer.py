"""Receive and send buffers of sockets, as large as one may have them."""

from __future__ import annotations

import socket

# Of asm-generic/socket.h; the socket module lacks them.
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33

DEFAULT_BUFFER_BYTES = 32 << 20
TRUESIZE_FACTOR = 3
"""The kernel charges a socket for its buffers, which are up to so much larger than the data."""


def enlarge_buffers(any_socket: socket.socket, nbytes: int) -> int:
    """Ask for both buffers, with privilege beyond the system's limit; what receiving got."""
    granted = _enlarge(any_socket, socket.SO_RCVBUF, _SO_RCVBUFFORCE, nbytes)
    _enlarge(any_socket, socket.SO_SNDBUF, _SO_SNDBUFFORCE, nbytes)
    return granted


def _enlarge(any_socket: socket.socket, option: int, forced_option: int, nbytes: int) -> int:
    try:
        any_socket.setsockopt(socket.SOL_SOCKET, forced_option, nbytes)
    except PermissionError:
        any_socket.setsockopt(socket.SOL_SOCKET, option, nbytes)
    return any_socket.getsockopt(socket.SOL_SOCKET, option)
