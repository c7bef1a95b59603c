"""Work requests: scatter/gather elements, receives, sends, and lists of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from emulator.pyverbs._structure import Field, PlainObject, i32, text_lines, u32, u64
from emulator.pyverbs.base import inc_rkey
from emulator.pyverbs.pyverbs_error import PyverbsUserError
from kvlane.verbs.enums import SendFlags, WrOpcode

if TYPE_CHECKING:
    from emulator.pyverbs.addr import AH
    from emulator.pyverbs.mr import MW, MWBindInfo

_WITHOUT_ELEMENTS = (WrOpcode.LOCAL_INV, WrOpcode.BIND_MW, WrOpcode.SEND_WITH_INV)


class Element(NamedTuple):
    """A scatter/gather element as it was when a work request took it."""

    addr: int
    length: int
    lkey: int


class SGE(PlainObject):
    """A range of registered memory, by address and local key."""

    addr = u64()
    length = u32()
    lkey = u32()

    def __init__(self, addr: int, length: int, lkey: int) -> None:
        super().__init__()
        self.addr = addr
        self.length = length
        self.lkey = lkey

    def read(self, length: int, offset: int) -> bytes:
        """``length`` bytes of the memory, from ``offset`` on; the range is not checked."""
        return ctypes.string_at(self.addr + offset, length)

    def __str__(self) -> str:
        return text_lines(
            ("Address", hex(self.addr)), ("Length", self.length), ("Key", hex(self.lkey))
        )


def copy_elements(sg: Sequence[SGE] | None, num_sge: int) -> list[Element]:
    """The first ``num_sge`` elements of a list; later changes of the list do not matter."""
    if num_sge and sg is None:
        raise TypeError(f"num_sge is {num_sge}, and sg is None")
    return [Element(sge.addr, sge.length, sge.lkey) for sge in list(sg or ())[:num_sge]]


class RecvWR(PlainObject):
    """Memory for one incoming message; ``next_wr`` makes a list that is posted in one call."""

    wr_id = u64()
    num_sge = i32()

    def __init__(
        self,
        wr_id: int = 0,
        num_sge: int = 0,
        sg: Sequence[SGE] | None = None,
        next_wr: RecvWR | None = None,
    ) -> None:
        super().__init__()
        self.wr_id = wr_id
        self.num_sge = num_sge
        self.elements = copy_elements(sg, num_sge)
        self.next_wr = next_wr

    def take(self, other: RecvWR) -> None:
        """Become a copy of another one, as a ``bad_wr`` does."""
        self.__dict__.update(other.__dict__)

    def __str__(self) -> str:
        return text_lines(("WR ID", self.wr_id), ("Num SGE", self.num_sge))


class SendWR(PlainObject):
    """One operation of a send queue; ``next_wr`` makes a list that is posted in one call.

    ``imm_data`` is the four bytes of the packet read as an integer of this machine, so a
    program that wants a number in it writes ``socket.htonl(number)``. For the invalidating
    operations it is the key to invalidate.
    """

    wr_id = u64()
    num_sge = i32()
    opcode = u32()
    send_flags = u32()
    imm_data = u32()

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = WrOpcode.SEND,
        num_sge: int = 0,
        imm_data: int = 0,
        sg: Sequence[SGE] | None = None,
        send_flags: int = SendFlags.SIGNALED,
        next_wr: SendWR | None = None,
    ) -> None:
        super().__init__()
        if opcode not in _WITHOUT_ELEMENTS and (num_sge < 1 or sg is None):
            raise PyverbsUserError("a work request of this opcode needs at least one SGE")
        self.wr_id = wr_id
        self.opcode = opcode
        self.num_sge = num_sge
        self.imm_data = imm_data
        self.send_flags = send_flags
        self.elements = copy_elements(sg, num_sge)
        self.next_wr = next_wr
        self.remote_addr = self.remote_key = 0
        self.compare_add = self.swap = 0
        self.ah: AH | None = None
        self.remote_qpn = self.remote_qkey = 0
        self.window: MW | None = None
        self.window_key = 0
        self.bind_info: MWBindInfo | None = None
        self.flush: tuple[int, int] | None = None
        """Header and length of a FLUSH, which only a batch of work requests can ask for."""

    @property
    def rkey(self) -> int:
        """The key that the window of a bind will have."""
        return self.window_key

    def _set_sg_list(self, sge: SGE) -> None:
        self.elements = copy_elements([sge], 1)

    sg_list = property(None, _set_sg_list, doc="Replace the elements by one; write only.")

    def set_wr_ud(self, ah: AH, rqpn: int, rqkey: int) -> None:
        """Where a datagram goes: address handle, number and Q_Key of the queue pair."""
        if ah is None:
            raise TypeError("a datagram needs an address handle")
        self.ah = ah
        self.remote_qpn = _U32.convert(rqpn)
        self.remote_qkey = _U32.convert(rqkey)

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """The remote memory of a READ or WRITE."""
        self.remote_key = _U32.convert(rkey)
        self.remote_addr = _U64.convert(addr)

    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None:
        """The remote word of an atomic, what it is compared with or grows by, what replaces it."""
        self.set_wr_rdma(rkey, addr)
        self.compare_add = _U64.convert(compare_add)
        self.swap = _U64.convert(swap)

    def set_bind_wr(self, mw: MW, bind_info: MWBindInfo) -> None:
        """Bind a type 2 window; its new key, the next after the present one, is ``rkey``."""
        self.window = mw
        self.window_key = inc_rkey(mw.rkey)
        self.bind_info = bind_info

    def set_qp_type_xrc(self, remote_srqn: int) -> None:
        """The shared receive queue at an XRC responder; the emulated device has no XRC."""
        self.remote_srqn = _U32.convert(remote_srqn)

    def take(self, other: SendWR) -> None:
        """Become a copy of another one, as a ``bad_wr`` does."""
        self.__dict__.update(other.__dict__)

    def __str__(self) -> str:
        return text_lines(
            ("WR ID", self.wr_id),
            ("Num SGE", self.num_sge),
            ("Opcode", self.opcode),
            ("Send flags", send_flags_to_str(self.send_flags)),
            ("Imm Data", self.imm_data),
        )


_U32 = Field(32)
_U64 = Field(64)


def send_flags_to_str(flags: int) -> str:
    """Names of send flags, each followed by a space."""
    return "".join(f"IBV_SEND_{flag.name} " for flag in SendFlags if flags & flag)
