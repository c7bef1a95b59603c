"""Which arrays any device of this package can register."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlane.errors import VerbsError
from kvlane.verbs.enums import AccessFlags

_WRITES = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC


def require_registrable(buffer: NDArray[np.uint8], access: AccessFlags) -> None:
    """``VerbsError`` unless this memory can be registered for this."""
    if not buffer.flags.c_contiguous:
        raise VerbsError("only contiguous memory can be registered")
    if access & _WRITES and not buffer.flags.writeable:
        raise VerbsError("read-only memory cannot be registered for writing")
