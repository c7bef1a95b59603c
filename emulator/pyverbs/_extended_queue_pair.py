"""Queue pairs whose work requests are built call by call."""

from __future__ import annotations

import ctypes
import errno
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from emulator.pyverbs import libibverbs_enums as e
from emulator.pyverbs._posting import join_records, operation_bit, refuse_send, send_record
from emulator.pyverbs._queue_pair import QP
from emulator.pyverbs._structure import PlainObject, u32, u64
from emulator.pyverbs.base import verbs_errors
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from emulator.pyverbs.wr import Element, SendWR, copy_elements
from emulator.wire.errors import WireError
from emulator.wire.feth import Feth, Selectivity
from kvlane.verbs.enums import SendFlags, WrOpcode

if TYPE_CHECKING:
    from emulator.pyverbs._qp_attributes import QPAttr, QPInitAttr, QPInitAttrEx
    from emulator.pyverbs.addr import AH
    from emulator.pyverbs.device import Context
    from emulator.pyverbs.mr import MW, MWBindInfo
    from emulator.pyverbs.pd import PD
    from emulator.pyverbs.wr import SGE

_SEND_OPS = e.ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
_ATOMIC_WRITE_BYTES = 8


class DataBuffer(PlainObject):
    """A range of memory, registered or not, that inline data is taken from."""

    addr = u64()
    length = u64()

    def __init__(self, addr: int, length: int) -> None:
        super().__init__()
        self.addr = addr
        self.length = length


class _Draft(SendWR):
    """A work request that is being built; what it sends is said after what it does."""

    def __init__(self, wr_id: int, opcode: int, send_flags: int) -> None:
        # An invalidation may be without elements, as every draft is at first.
        super().__init__(wr_id=wr_id, opcode=WrOpcode.LOCAL_INV, send_flags=send_flags)
        self.opcode = opcode
        self.inline: Any = None

    def set_elements(self, elements: list[Element]) -> None:
        """Send from, or read into, registered memory."""
        self.elements = elements
        self.num_sge = len(elements)

    def set_inline(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Send a copy of memory, made now."""
        self.set_value(b"".join(ctypes.string_at(addr, length) for addr, length in buffers))

    def set_value(self, data: bytes) -> None:
        """Send these bytes."""
        self.inline = ctypes.create_string_buffer(data, max(1, len(data)))
        self.set_elements([Element(ctypes.addressof(self.inline), len(data), 0)])
        self.send_flags |= SendFlags.INLINE


class QPEx(QP):
    """A queue pair that takes batches of work requests.

    Between ``wr_start`` and ``wr_complete`` each ``wr_`` call of an operation begins a work
    request with the present ``wr_id`` and ``wr_flags``, and each ``wr_set_`` call says more
    about the one begun last. ``wr_complete`` posts all of the batch or, raising an error,
    none of it; ``wr_abort`` forgets it.
    """

    comp_mask = u64()
    wr_id = u64()
    wr_flags = u32()

    def __init__(
        self,
        creator: PD | Context,
        init_attr: QPInitAttr | QPInitAttrEx,
        qp_attr: QPAttr | None = None,
    ) -> None:
        super().__init__(creator, init_attr, qp_attr)
        mask = getattr(init_attr, "comp_mask", 0)
        self._operations = getattr(init_attr, "send_ops_flags", 0) if mask & _SEND_OPS else 0
        self._batch: list[_Draft] | None = None
        self.ind_table = None

    def wr_start(self) -> None:
        """Begin a batch."""
        if not self._operations:
            raise PyverbsUserError("the QP was created without send_ops_flags in comp_mask")
        if self._batch is not None:
            raise PyverbsUserError("a batch has been started already")
        self._batch = []

    def wr_complete(self) -> None:
        """Post the batch."""
        batch, index = self._started(), self.index
        self._batch = None
        failed = "Failed to post a batch of work requests"
        for draft in batch:
            code = self._refuse(draft)
            if code:
                raise PyverbsRDMAError(failed, code)
        if not batch:
            return
        records = join_records([send_record(draft, self.port) for draft in batch])
        with verbs_errors(failed), self.port.nic.engine() as engine:
            engine.qps.post_work(index, records)

    def wr_abort(self) -> None:
        """Forget the batch."""
        self._batch = None

    def _refuse(self, draft: _Draft) -> int:
        if not self._operations & operation_bit(draft.opcode):
            return errno.EOPNOTSUPP
        return refuse_send(draft, self.qp_type, self.caps.max_send_sge, self.caps.max_inline_data)

    def _started(self) -> list[_Draft]:
        if self._batch is None:
            raise PyverbsUserError("wr_start must come first")
        return self._batch

    def _begin(self, opcode: int) -> _Draft:
        draft = _Draft(self.wr_id, opcode, self.wr_flags)
        self._started().append(draft)
        return draft

    def _last(self) -> _Draft:
        batch = self._started()
        if not batch:
            raise PyverbsUserError("no work request of the batch has been begun")
        return batch[-1]

    # Operations

    def wr_send(self) -> None:
        """Send a message."""
        self._begin(WrOpcode.SEND)

    def wr_send_imm(self, data: int) -> None:
        """Send a message with immediate data, given as a number."""
        self._begin(WrOpcode.SEND_WITH_IMM).imm_data = socket.htonl(data)

    def wr_send_inv(self, invalidate_rkey: int) -> None:
        """Send a message that closes a window of the peer's."""
        self._begin(WrOpcode.SEND_WITH_INV).imm_data = invalidate_rkey

    def wr_rdma_read(self, rkey: int, remote_addr: int) -> None:
        """Read remote memory."""
        self._begin(WrOpcode.RDMA_READ).set_wr_rdma(rkey, remote_addr)

    def wr_rdma_write(self, rkey: int, remote_addr: int) -> None:
        """Write remote memory."""
        self._begin(WrOpcode.RDMA_WRITE).set_wr_rdma(rkey, remote_addr)

    def wr_rdma_write_imm(self, rkey: int, remote_addr: int, data: int) -> None:
        """Write remote memory and tell the peer, with immediate data, given as a number."""
        draft = self._begin(WrOpcode.RDMA_WRITE_WITH_IMM)
        draft.set_wr_rdma(rkey, remote_addr)
        draft.imm_data = socket.htonl(data)

    def wr_atomic_cmp_swp(self, rkey: int, remote_addr: int, compare: int, swap: int) -> None:
        """Replace a remote word if it equals ``compare``."""
        draft = self._begin(WrOpcode.ATOMIC_CMP_AND_SWP)
        draft.set_wr_atomic(rkey, remote_addr, compare, swap)

    def wr_atomic_fetch_add(self, rkey: int, remote_addr: int, add: int) -> None:
        """Add to a remote word."""
        self._begin(WrOpcode.ATOMIC_FETCH_AND_ADD).set_wr_atomic(rkey, remote_addr, add)

    def wr_bind_mw(self, mw: MW, rkey: int, bind_info: MWBindInfo) -> None:
        """Bind a type 2 window, with ``rkey`` as its new key."""
        draft = self._begin(WrOpcode.BIND_MW)
        draft.set_bind_wr(mw, bind_info)
        draft.window_key = rkey
        self.add_ref(mw)

    def wr_local_inv(self, invalidate_rkey: int) -> None:
        """Close a window of one's own."""
        self._begin(WrOpcode.LOCAL_INV).imm_data = invalidate_rkey

    def wr_atomic_write(self, rkey: int, remote_addr: int, atomic_wr: bytes) -> None:
        """Store the first 8 bytes of ``atomic_wr`` in remote memory, all at once."""
        if len(atomic_wr) < _ATOMIC_WRITE_BYTES:
            raise PyverbsUserError(f"an atomic write has 8 bytes, and not {len(atomic_wr)}")
        draft = self._begin(WrOpcode.ATOMIC_WRITE)
        draft.set_wr_rdma(rkey, remote_addr)
        draft.set_value(bytes(atomic_wr[:_ATOMIC_WRITE_BYTES]))

    def wr_flush(self, rkey: int, remote_addr: int, length: int, ptype: int, level: int) -> None:
        """Be told when what was written before is where ``ptype``, an ``ibv_placement_type``,
        says; ``level``, an ``ibv_selectivity_level``, makes range or whole region of it.

        No emulated region permits ``IBV_FLUSH_PERSISTENT``, so the peer refuses that.
        """
        draft = self._begin(WrOpcode.FLUSH)
        draft.set_wr_rdma(rkey, remote_addr)
        try:
            feth = Feth(ptype, level)
        except WireError as error:
            raise PyverbsUserError(str(error)) from None
        draft.flush = (feth.word, 0 if level == Selectivity.REGION else length)

    def wr_send_tso(self, hdr: int, hdr_sz: int, mss: int) -> None:  # noqa: ARG002
        """Not supported: the batch will be refused with EOPNOTSUPP."""
        self._begin(e.ibv_wr_opcode.IBV_WR_TSO)

    # What an operation needs besides

    def wr_set_ud_addr(self, ah: AH, remote_qpn: int, remote_rkey: int) -> None:
        """Where a datagram goes; ``remote_rkey`` is the Q_Key."""
        self._last().set_wr_ud(ah, remote_qpn, remote_rkey)

    def wr_set_xrc_srqn(self, remote_srqn: int) -> None:
        """The shared receive queue at an XRC responder."""
        self._last().set_qp_type_xrc(remote_srqn)

    def wr_set_sge(self, sge: SGE) -> None:
        """One element of registered memory."""
        self._last().set_elements(copy_elements([sge], 1))

    def wr_set_sge_list(self, num_sge: int, sg_list: Sequence[SGE]) -> None:
        """Several elements of registered memory."""
        self._last().set_elements(copy_elements(sg_list, num_sge))

    def wr_set_inline_data(self, addr: int, length: int) -> None:
        """A copy of memory, registered or not."""
        self._last().set_inline([(addr, length)])

    def wr_set_inline_data_list(self, num_buf: int, buf_list: Sequence[DataBuffer]) -> None:
        """A copy of several ranges of memory."""
        self._last().set_inline([(buffer.addr, buffer.length) for buffer in buf_list[:num_buf]])
