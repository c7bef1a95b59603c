"""What the objects of one opened device share: pyverbs, the lock, and who is still open."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Protocol

from kvlane.hardware.binding import Binding


class Closable(Protocol):
    """A region, completion queue or queue pair."""

    def close(self) -> None:
        """Release it."""


class DeviceCore:
    """One lock for the device: verbs are quick, and pyverbs holds the GIL in them anyway."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.lock = threading.RLock()
        self._open: dict[Closable, None] = {}
        """In the order of creation. A strong reference: a region that nobody names any more
        stays registered, and its memory alive, until the device is closed."""

    def remember(self, child: Closable) -> None:
        """Close it with the device, unless it is closed before."""
        self._open[child] = None

    def forget(self, child: Closable) -> None:
        """It has been closed."""
        self._open.pop(child, None)

    def close_all(self) -> None:
        """Close what is open, the youngest first: a queue pair goes before what it uses."""
        with ExitStack() as closing:  # an error of one does not keep the others open
            for child in self._open:
                closing.callback(child.close)
