"""The endpoint outside, with what only an emulated NIC can tell and do.

It counts what the link's faults have taken, and makes every ICRC that it sends wrong: the control
of the whole matrix.
"""

from __future__ import annotations

import json
import sys

from emulator.link.frames import Burst
from emulator.link.raw import RawLink
from emulator.nic.softnic import SoftNic
from emulator.pyverbs import fabric
from tests.interop import endpoint

_send = RawLink.send


class EmulatedEndpoint(endpoint.Endpoint):
    """An endpoint on the drop-in."""

    def __init__(self) -> None:
        super().__init__()
        self._spoils = False
        RawLink.send = lambda link, burst: self._send(link, burst)  # type: ignore[method-assign]

    def spoil(self, on: bool) -> None:
        """Have every ICRC wrong from now on, or right again."""
        self._spoils = on

    def counters(self) -> dict[str, int]:
        """Of the NIC and its link."""
        return _nic().counters()

    def _send(self, link: RawLink, burst: Burst) -> int:
        if not self._spoils:
            return _send(link, burst)
        # One bit of the last byte, and back where the link wants the frame again.
        _flip(burst, 0)
        accepted = _send(link, burst)
        _flip(burst, accepted)
        return accepted


def _flip(burst: Burst, first: int) -> None:
    for index in range(first, burst.count):
        last = int(burst.frames.offset[index] + burst.frames.length[index]) - 1
        burst.arena[last] ^= 1


def _nic() -> SoftNic:
    return fabric.devices()[0].open().nic


if __name__ == "__main__":
    served = EmulatedEndpoint()
    endpoint.serve(served, sys.argv[1], int(sys.argv[2]))
    print(json.dumps(served.counters()))  # into the log
