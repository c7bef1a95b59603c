"""Registered memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlane.errors import VerbsError
from kvlane.hardware.core import DeviceCore
from kvlane.hardware.failures import DESTROYING, REGISTERING, failing
from kvlane.verbs.enums import AccessFlags

_REMOTE_CHANGES = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC
_WRITES = AccessFlags.LOCAL_WRITE | _REMOTE_CHANGES


def require_registrable(buffer: NDArray[np.uint8], access: AccessFlags) -> None:
    """``VerbsError`` for memory that cannot be registered with this access."""
    if not buffer.flags.c_contiguous:
        raise VerbsError("only contiguous memory can be registered")
    if access & _WRITES and not buffer.flags.writeable:
        raise VerbsError("read-only memory cannot be registered for writing")
    if access & _REMOTE_CHANGES and not access & AccessFlags.LOCAL_WRITE:
        raise VerbsError("remote write or atomic access needs local write access besides")
    if access & AccessFlags.ON_DEMAND:
        # Its page faults stall a queue pair for milliseconds, and not every device has it.
        raise VerbsError("memory is registered pinned, never on demand; leave ON_DEMAND out")


class HardwareRegion:
    """A memory region over an array, which it keeps alive until it is closed."""

    def __init__(
        self, core: DeviceCore, pd: Any, buffer: NDArray[np.uint8], access: AccessFlags
    ) -> None:
        require_registrable(buffer, access)
        self._core = core
        self._buffer: NDArray[np.uint8] | None = buffer
        self.addr = int(buffer.ctypes.data)
        self.length = int(buffer.nbytes)
        binding = core.binding
        with core.lock, failing(binding, f"registering {self.length} bytes", REGISTERING):
            self._mr = binding.mr.MR(pd, self.length, int(access), address=self.addr)
        self.lkey = int(self._mr.lkey)
        self.rkey = int(self._mr.rkey)

    def close(self) -> None:
        """Deregister."""
        with self._core.lock:
            if self._buffer is None:
                return
            with failing(self._core.binding, "deregistering memory", DESTROYING):
                self._mr.close()
            self._buffer = None
            self._core.forget(self)
