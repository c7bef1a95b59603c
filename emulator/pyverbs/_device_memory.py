"""Memory of the device itself, which programs reach by the device alone, in whole words."""

from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING, ClassVar

from emulator.pyverbs._memory import Buffer
from emulator.pyverbs._structure import u32, u64
from emulator.pyverbs.base import Dependents, PyverbsCM, PyverbsObject
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError

if TYPE_CHECKING:
    from emulator.pyverbs.device import Context

MAX_DM_BYTES = 256 * 1024
"""Of all objects of a device together; as much as ConnectX devices have."""
_WORD_BYTES = 4
_MAX_LOG_ALIGN = 12
_SHARED_KIND = "dm"


class AllocDmAttr(PyverbsObject):
    """Attributes of device memory; alignment as a power of two."""

    length = u64()
    log_align_req = u32()
    comp_mask = u32()

    def __init__(self, length: int, log_align_req: int = 0, comp_mask: int = 0) -> None:
        super().__init__()
        self.length = length
        self.log_align_req = log_align_req
        self.comp_mask = comp_mask


class DM(PyverbsCM):
    """A piece of device memory."""

    _kind: ClassVar[str] = "dm"
    _buffer: Buffer | None = None

    def __init__(
        self, context: Context, dm_attr: AllocDmAttr | None = None, *, handle: int | None = None
    ) -> None:
        """Allocate; with ``handle`` it is that of another context."""
        super().__init__()
        self._is_imported = handle is not None
        self._port = context.port
        self._dependents = Dependents("mr")
        if handle is not None:
            shared = self._port.shared.get((_SHARED_KIND, handle))
            if shared is None:
                raise PyverbsRDMAError("Failed to import DM", errno.ENOENT)
            self.handle, (self.length, self._buffer) = handle, shared
        elif dm_attr is not None:
            self._allocate(dm_attr)
        else:
            raise PyverbsUserError("a DM is made of attributes, or of a handle")
        context.add_ref(self)

    def _allocate(self, attr: AllocDmAttr) -> None:
        failed = (
            f"Failed to allocate device memory of size {attr.length}. "
            f"Max available size {MAX_DM_BYTES}."
        )
        if attr.comp_mask or attr.log_align_req > _MAX_LOG_ALIGN or not attr.length:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        port = self._port
        used = sum(value[0] for (kind, _), value in port.shared.items() if kind == _SHARED_KIND)
        if used + attr.length > MAX_DM_BYTES:
            raise PyverbsRDMAError(failed, errno.ENOMEM)
        self._buffer = Buffer(attr.length)
        self.length = attr.length
        self.handle = port.new_handle()
        port.shared[_SHARED_KIND, self.handle] = (self.length, self._buffer)

    def add_ref(self, obj: PyverbsCM) -> None:
        """Close a region of it first."""
        self._dependents.add(obj)

    def unimport(self) -> None:
        """Give up memory of another context, which goes on using it."""
        self.close()

    def close(self) -> None:
        """Free it, after the regions that were made of it."""
        if self._buffer is not None:
            self._dependents.close()
            self._buffer = None
            if not self._is_imported:
                self._port.shared.pop((_SHARED_KIND, self.handle), None)

    @property
    def buffer(self) -> Buffer:
        """What stands for the memory; only the engine may use its address."""
        if self._buffer is None:
            raise PyverbsUserError("the device memory is closed")
        return self._buffer

    def copy_to_dm(self, dm_offset: int, data: bytes, length: int) -> None:
        """Write; offset and length must be multiples of 4 inside the memory."""
        address = self._checked(dm_offset, length, "Failed to copy to dm")
        if length > len(data):
            raise PyverbsUserError(f"{length} bytes are to be copied of {len(data)}")
        ctypes.memmove(address, bytes(data), length)

    def copy_from_dm(self, dm_offset: int, length: int) -> bytes:
        """Read; offset and length must be multiples of 4 inside the memory."""
        return ctypes.string_at(self._checked(dm_offset, length, "Failed to copy from dm"), length)

    def _checked(self, offset: int, length: int, failed: str) -> int:
        is_inside = 0 <= offset <= offset + length <= self.length
        if not is_inside or offset % _WORD_BYTES or length % _WORD_BYTES:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        return self.buffer.addr + offset
