"""The registered memory that holds the payload of every block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlane.verbs.enums import AccessFlags
from kvlane.verbs.protocols import Device


class PayloadPool:
    """One allocation, registered once a device: registering per block would cost more than moving
    it.

    No remote access is granted. The agent reads from and writes to hosts, never the other
    way round, so a host that knows an address here can do nothing with it.
    """

    def __init__(self, device: Device, buffer: NDArray[np.uint8]) -> None:
        self.device = device
        self.buffer = buffer
        self._region = device.register(buffer, AccessFlags.LOCAL_WRITE)

    @property
    def addr(self) -> int:
        """Address of the first byte."""
        return self._region.addr

    @property
    def lkey(self) -> int:
        """Key for the agent's own work requests."""
        return self._region.lkey

    def close(self) -> None:
        """Deregister."""
        self._region.close()
