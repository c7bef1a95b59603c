"""The registered buffers of a session: where commands arrive and responses leave from."""

from __future__ import annotations

from kvlane.verbs.enums import AccessFlags
from kvlane.verbs.protocols import Device


class CapsuleBuffers:
    """``count`` buffers of ``nbytes`` each, side by side."""

    def __init__(self, device: Device, count: int, nbytes: int, access: AccessFlags) -> None:
        self._buffer = device.alloc(count * nbytes)
        self._region = device.register(self._buffer, access)

    @property
    def addr(self) -> int:
        """Address of the first."""
        return self._region.addr

    @property
    def lkey(self) -> int:
        """Key for work requests."""
        return self._region.lkey

    def close(self) -> None:
        """Deregister."""
        self._region.close()
