"""One NIC an interface and process: devices that name the same interface share it.

A port on the raw link holds the addresses of its interface, so a second one would find them
taken; as with hardware, whoever opens the same device again gets the same port.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from emulator.nic.options import NicOptions
from emulator.nic.softnic import SoftNic
from kvlane.errors import ConfigError

Place = tuple[str, int]
"""Name of an interface, and the network namespace that gives the name its meaning."""


@dataclass(slots=True)
class SharedNic:
    """A NIC, what it was opened with, and how many devices have it."""

    nic: SoftNic
    options: NicOptions
    name: str
    """For people: where it is."""
    mtu_bytes: int
    place: Place = ("", 0)
    users: int = 1

    def release(self) -> None:
        """A device has been closed; the last one closes the NIC."""
        with _lock:
            self.users -= 1
            if self.users:
                return
            if _by_place.get(self.place) is self:
                del _by_place[self.place]
            # Within the lock: whoever opens the interface next must find its addresses free.
            self.nic.close()


_lock = threading.Lock()
_by_place: dict[Place, SharedNic] = {}


def shared_nic(options: NicOptions, open_nic: Callable[[], SharedNic]) -> SharedNic:
    """The NIC for these options: an open one of the same interface, else a new one.

    ``ConfigError`` when it was opened with other options. Without an interface nothing is shared.
    """
    if not options.interface:
        return open_nic()
    place = (options.interface, os.stat("/proc/thread-self/ns/net").st_ino)
    with _lock:
        held = _by_place.get(place)
        if held is None:
            held = _by_place[place] = open_nic()
            held.place = place
        elif held.options != options:
            raise ConfigError(
                f"interface: this process has {options.interface} open with other options; "
                f"open it with the same ones, or close that device first"
            )
        else:
            held.users += 1
        return held
