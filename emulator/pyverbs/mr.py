"""Memory regions and memory windows."""

from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from emulator.pyverbs import fabric
from emulator.pyverbs._memory import Buffer
from emulator.pyverbs._structure import Field, PlainObject, text_lines, u32, u64
from emulator.pyverbs.base import PyverbsCM, not_supported, verbs_errors
from emulator.pyverbs.libibverbs_enums import (
    ibv_access_flags,
    ibv_mw_type,
    ibv_rereg_mr_err_code,
    ibv_rereg_mr_flags,
)
from emulator.pyverbs.pd import PD
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from emulator.pyverbs.utils import rereg_error_to_str
from kvlane.verbs.enums import AccessFlags, MwType

if TYPE_CHECKING:
    from emulator.pyverbs.device import DM
    from emulator.pyverbs.dmabuf import DmaBuf

_SHARED_KIND = "mr"
_Access = ibv_access_flags
_UNSUPPORTED_ACCESS = _Access.IBV_ACCESS_ON_DEMAND | _Access.IBV_ACCESS_FLUSH_PERSISTENT
_KNOWN_ACCESS = sum(member.value for member in ibv_access_flags)
_ENGINE_ACCESS = sum(member.value for member in AccessFlags)
_ALL_REREG_FLAGS = sum(member.value for member in ibv_rereg_mr_flags)
_MAX_ADDRESS = 1 << 63


class _Shared(NamedTuple):
    """A region as another context may import it."""

    key: int
    length: int


class MR(PyverbsCM):
    """A registered range of memory; without an address, of a buffer of its own.

    The device names it by one key for both local and remote use.
    """

    _kind: ClassVar[str] = "mr"
    _port: fabric.Port | None = None
    _key: int
    _length: int
    _handle: int

    def __init__(
        self,
        creator: Any,
        length: int = 0,
        access: int = 0,
        address: int | None = None,
        implicit: bool = False,
        *,
        handle: int | None = None,
    ) -> None:
        """Register in the domain of ``creator``, a PD or CM ID.

        With ``handle`` it is the region of another context. ``implicit``, which opens the
        whole address space, needs on-demand paging, which the device does not have.
        """
        super().__init__()
        self.pd: PD | None = None
        self._buffer: Buffer | None = None
        self._address = address or 0
        self._is_imported = handle is not None
        owner = creator if isinstance(creator, PD) else creator.pd
        failed = f"Failed to register a MR. length: {length}, access flags: {int(access)}"
        if handle is not None:
            self._import(owner, handle)
        elif implicit:
            not_supported(failed)
        else:
            self._register(owner, int(length), _checked_access(int(access), failed), failed)
        self.pd = owner
        self._port = owner.ctx.port
        owner.add_ref(self)
        if owner is not creator:
            creator.add_ref(self)

    def _import(self, pd: PD, handle: int) -> None:
        shared = pd.ctx.port.shared.get((_SHARED_KIND, handle))
        if shared is None:
            raise PyverbsRDMAError("Failed to import MR", errno.ENOENT)
        self._key, self._length, self._handle = shared.key, shared.length, handle

    def _register(self, pd: PD, length: int, access: int, failed: str) -> None:
        if not 0 <= self._address <= self._address + length < _MAX_ADDRESS:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        if not self._address and length:
            huge_pages = bool(access & _Access.IBV_ACCESS_HUGETLB)
            self._buffer = Buffer(length, huge_pages=huge_pages)
            self._address = self._buffer.addr
        port = pd.ctx.port
        with verbs_errors(failed), port.nic.engine() as engine:
            self._key = engine.regions.register(
                self._address, length, access & _ENGINE_ACCESS, pd.number, self._buffer
            )
        self._length = length
        self._handle = port.new_handle()
        port.shared[_SHARED_KIND, self._handle] = _Shared(self._key, length)

    def unimport(self) -> None:
        """Give up a region of another context, which goes on using it."""
        self.close()

    def close(self) -> None:
        """Deregister, and free the buffer that was allocated for it."""
        port, self._port = self._port, None
        if port is None:
            return
        if not self._is_imported:
            port.shared.pop((_SHARED_KIND, self._handle), None)
            with verbs_errors("Failed to dereg MR"), port.nic.engine() as engine:
                engine.regions.deregister(self._key)
        self._buffer = None
        self._address = 0

    def rereg(
        self, flags: int, pd: PD | None = None, addr: int = 0, length: int = 0, access: int = 0
    ) -> None:
        """Change what ``flags`` names: domain, access, or the memory; the key stays."""
        flags = int(flags)
        codes = ibv_rereg_mr_err_code
        if not 0 < flags <= _ALL_REREG_FLAGS:
            raise _rereg_error(codes.IBV_REREG_MR_ERR_INPUT)
        new_pd = pd if flags & ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_PD else None
        moves = flags & ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_TRANSLATION
        changes_access = flags & ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_ACCESS
        if flags & ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_PD and pd is None:
            raise _rereg_error(codes.IBV_REREG_MR_ERR_INPUT)
        if moves and not 0 < addr <= addr + length < _MAX_ADDRESS:
            raise _rereg_error(codes.IBV_REREG_MR_ERR_INPUT)
        failed = f"Failed to rereg MR: {rereg_error_to_str(codes.IBV_REREG_MR_ERR_CMD)}"
        port = self._require_port()
        with verbs_errors(failed), port.nic.engine() as engine:
            engine.regions.change(
                self._key,
                access=_checked_access(access, failed) if changes_access else None,
                pd=new_pd.number if new_pd is not None else None,
                memory=(addr, length, None) if moves else None,
            )
        if moves:
            self._buffer, self._address, self._length = None, addr, length
            port.shared[_SHARED_KIND, self._handle] = _Shared(self._key, length)
        if new_pd is not None and self.pd is not None:
            self.pd.remove_ref(self)
            self.pd = new_pd
            new_pd.add_ref(self)

    def write(self, data: str | bytes, length: int, offset: int = 0) -> None:
        """Copy the first ``length`` bytes of ``data`` into the region."""
        data = data.encode() if isinstance(data, str) else data
        if length > len(data):
            raise PyverbsUserError(f"{length} bytes are to be written of {len(data)}")
        ctypes.memmove(self._checked(offset, length), bytes(data), length)

    def read(self, length: int, offset: int) -> bytes:
        """Bytes of the region."""
        return ctypes.string_at(self._checked(offset, length), length)

    def _checked(self, offset: int, length: int) -> int:
        """The address of a part of the region, if it is one."""
        if offset < 0:
            raise PyverbsUserError(f"Invalid offset {offset}")
        if not self._address or length < 0:
            raise PyverbsUserError(f"The MR buffer isn't allocated or length {length} is invalid")
        if offset + length > self._length:
            raise PyverbsUserError(
                f"{length} bytes at offset {offset} are not inside the region, which has "
                f"{self._length} bytes"
            )
        return self._address + offset

    def _require_port(self) -> fabric.Port:
        if self._port is None:
            raise PyverbsUserError("the memory region is closed")
        return self._port

    @property
    def buf(self) -> int:
        """Address of its memory; 0 after ``close``."""
        return self._address

    @property
    def lkey(self) -> int:
        """The key for work requests."""
        return self._key

    @property
    def rkey(self) -> int:
        """The key for peers."""
        return self._key

    @property
    def length(self) -> int:
        """Bytes."""
        return self._length

    @property
    def handle(self) -> int:
        """By which another context can import it."""
        return self._handle

    def __str__(self) -> str:
        return "MR:\n" + text_lines(
            ("lkey", self.lkey),
            ("rkey", self.rkey),
            ("length", self.length),
            ("buf", self.buf),
            ("handle", self.handle),
        )


def _checked_access(access: int, failed: str) -> int:
    if access & _UNSUPPORTED_ACCESS:
        not_supported(failed)
    if access & ~_KNOWN_ACCESS:
        raise PyverbsRDMAError(failed, errno.EINVAL)
    return access


def _rereg_error(code: ibv_rereg_mr_err_code) -> PyverbsRDMAError:
    return PyverbsRDMAError(f"Failed to rereg MR: {rereg_error_to_str(code)}", errno.EINVAL)


class MWBindInfo(PlainObject):
    """What a memory window is to open: a part of a region."""

    addr = u64()
    length = u64()
    mw_access_flags = u32()

    def __init__(self, mr: MR, addr: int, length: int, mw_access_flags: int) -> None:
        super().__init__()
        self.mr = mr
        self.addr = addr
        self.length = length
        self.mw_access_flags = mw_access_flags

    def __str__(self) -> str:
        return "MWBindInfo:\n" + text_lines(
            ("Addr", self.addr),
            ("Length", self.length),
            ("MW access flags", self.mw_access_flags),
        )


class MWBind(PlainObject):
    """A request to bind a window of type 1."""

    wr_id = u64()
    send_flags = u32()

    def __init__(self, info: MWBindInfo, send_flags: int, wr_id: int = 0) -> None:
        super().__init__()
        self.info = info
        self.send_flags = send_flags
        self.wr_id = wr_id

    def __str__(self) -> str:
        return "MWBind:\n" + text_lines(("WR id", self.wr_id), ("Send flags", self.send_flags))


class MW(PyverbsCM):
    """A memory window: a key that opens a part of a region as long as it is bound."""

    _kind: ClassVar[str] = "mw"
    _port: fabric.Port | None = None

    rkey: Field = u32()
    """The key as its owner has bound it last."""

    def __init__(self, pd: PD, mw_type: int) -> None:
        super().__init__()
        failed = "Failed to allocate MW"
        if mw_type not in list(MwType):
            raise PyverbsRDMAError(failed, errno.EINVAL)
        self.type = MwType(mw_type)
        port = pd.ctx.port
        with verbs_errors(failed), port.nic.engine() as engine:
            self.rkey = engine.regions.alloc_window(pd.number, MwType(mw_type))
        self.handle = self._allocated_key = self.rkey
        self._port = port
        self.pd = pd
        pd.add_ref(self)

    def close(self) -> None:
        """Free the window; its key opens nothing from now on."""
        port, self._port = self._port, None
        if port is not None:
            with verbs_errors("Failed to dealloc MW"), port.nic.engine() as engine:
                engine.regions.dealloc_window(self._allocated_key)

    def __str__(self) -> str:
        return "MW:\n" + text_lines(
            ("Rkey", self.rkey), ("Handle", self.handle), ("MW Type", mwtype2str(self.type))
        )


class DMMR(MR):
    """A region of device memory: addresses in it count from 0."""

    def __init__(self, pd: PD, length: int, access: int, dm: DM, offset: int) -> None:
        PyverbsCM.__init__(self)
        access, length = int(access), int(length)
        failed = f"Failed to register a device MR. length: {length}, access flags: {access}"
        is_inside = 0 <= offset <= offset + length <= dm.length
        if not is_inside or not access & _Access.IBV_ACCESS_ZERO_BASED:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        self.pd = pd
        self.dm = dm
        self._buffer = dm.buffer
        self._address = dm.buffer.addr + offset
        self._is_imported = False
        self._register(pd, length, _checked_access(access, failed), failed)
        # A program must not go round the device.
        self._address = 0
        self._port = pd.ctx.port
        pd.add_ref(self)
        dm.add_ref(self)

    def write(self, data: str | bytes, length: int, offset: int = 0) -> None:
        """Write to the device memory."""
        data = data.encode() if isinstance(data, str) else data
        self.dm.copy_to_dm(offset, data, length)

    def read(self, length: int, offset: int) -> bytes:
        """Read from the device memory."""
        return self.dm.copy_from_dm(offset, length)


class DmaBufMR(MR):
    """A region of a DMA buffer, which only hardware shares."""

    def __init__(
        self,
        pd: PD,
        length: int,
        access: int,
        dmabuf: DmaBuf | int | None = None,
        offset: int = 0,
        gpu: int = 0,
        gtt: int = 0,
    ) -> None:
        not_supported(
            f"Failed to register a dma-buf MR. length: {length}, access flags: {int(access)}, "
            f"offset {offset} of {dmabuf or f'GPU {gpu}'}{', GTT' if gtt else ''} "
            f"on {pd.ctx.name}"
        )


def mwtype2str(mw_type: int) -> str:
    """Name of an ``ibv_mw_type``."""
    if mw_type in list(MwType):
        return str(ibv_mw_type(mw_type).name)
    return f"Unknown MW type ({mw_type})"
