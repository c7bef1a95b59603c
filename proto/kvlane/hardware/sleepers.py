"""Threads that sleep in ``Device.wait``, and how all of them are woken at once."""

from __future__ import annotations

import os
from contextlib import suppress


class Sleepers:
    """A descriptor that ends every sleep; its methods are called under the device's lock.

    A completion channel tells one reader of an event. Whoever takes it therefore kicks the
    others, who may be waiting for what it has announced.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._count = 0
        self._is_closed = False

    def enter(self) -> None:
        """A thread is about to sleep."""
        self._count += 1

    def leave(self) -> None:
        """It is awake; the last one takes the kick back, or the descriptor away."""
        self._count -= 1
        if self._count:
            return
        if self._is_closed:
            os.close(self.fd)
            return
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def kick(self) -> None:
        """Wake all who sleep."""
        if self._count:
            os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Wake all; the descriptor goes with the last of them."""
        if self._is_closed:
            return
        self._is_closed = True
        self.kick()
        if self._count == 0:
            os.close(self.fd)
