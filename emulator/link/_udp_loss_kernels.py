"""What the errors of sending mean on the UDP link, and frames that are lost by them."""

from __future__ import annotations

import errno
from typing import Any

from kvlane.calls import call
from kvlane.jit import kernel


@kernel
def is_link_full(code: int) -> bool:
    """Whether to try again later."""
    return code in (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)


@kernel
def lose(port: Any, frames: int, code: int, nbytes: int, peer: int) -> None:
    """Count frames that cannot be sent, and note the first that is too long."""
    port.lost_sending += frames
    if code == errno.EMSGSIZE and port.too_long_bytes == 0:
        port.too_long_bytes = nbytes
        port.too_long_for = peer
        call(port.tell_of_length, 0, 0, 0, 0)
