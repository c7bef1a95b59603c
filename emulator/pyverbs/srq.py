"""Shared receive queues."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, ClassVar

from emulator.pyverbs import libibverbs_enums as e
from emulator.pyverbs._posting import chain, post_prefix, receive_record, refuse_elements
from emulator.pyverbs._structure import PlainObject, u32, u64
from emulator.pyverbs.base import Dependents, PyverbsCM, PyverbsObject, not_supported, verbs_errors
from emulator.pyverbs.pd import PD
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from emulator.pyverbs.cq import CQ, CQEX
    from emulator.pyverbs.device import Context
    from emulator.pyverbs.wr import SGE, RecvWR
    from emulator.pyverbs.xrcd import XRCD

_NO_INDEX = -1


class SrqAttr(PyverbsObject):
    """Size and limit of a shared receive queue."""

    max_wr = u32()
    max_sge = u32()
    srq_limit = u32()

    def __init__(self, max_wr: int = 100, max_sge: int = 1, srq_limit: int = 0) -> None:
        super().__init__()
        self.max_wr = max_wr
        self.max_sge = max_sge
        self.srq_limit = srq_limit


class SrqInitAttr(PyverbsObject):
    """How a shared receive queue that a PD creates is to be made."""

    def __init__(self, attr: SrqAttr | None = None) -> None:
        super().__init__()
        self._attr = SrqAttr(0, 0, 0)
        if attr is not None:
            self._attr = SrqAttr(attr.max_wr, attr.max_sge, attr.srq_limit)

    @property
    def max_wr(self) -> int:
        """Receives that fit."""
        return self._attr.max_wr

    @property
    def max_sge(self) -> int:
        """Elements of a receive."""
        return self._attr.max_sge

    @property
    def srq_limit(self) -> int:
        """Receives below which an event tells of the queue."""
        return self._attr.srq_limit


class SrqInitAttrEx(SrqInitAttr):
    """How a shared receive queue that a context creates is to be made."""

    comp_mask = u32()
    srq_type = u32()
    max_num_tags = u32()
    max_ops = u32()

    def __init__(self, max_wr: int = 100, max_sge: int = 1, srq_limit: int = 0) -> None:
        super().__init__(SrqAttr(max_wr, max_sge, srq_limit))
        self.cq: CQ | CQEX | None = None
        self.pd: PD | None = None
        self.xrcd: XRCD | None = None


class OpsWr(PlainObject):
    """A request to change the tag list of a tag-matching queue, which no emulated device has."""

    wr_id = u64()
    opcode = u32()
    flags = u32()
    unexpected_cnt = u32()
    recv_wr_id = u64()
    tag = u64()
    mask = u64()
    handle = u32()

    def __init__(  # noqa: PLR0913 -- the signature of pyverbs
        self,
        wr_id: int = 0,
        opcode: int = e.ibv_ops_wr_opcode.IBV_WR_TAG_ADD,
        flags: int = e.ibv_ops_flags.IBV_OPS_SIGNALED,
        next_wr: OpsWr | None = None,
        unexpected_cnt: int = 0,
        recv_wr_id: int = 0,
        num_sge: int | None = None,
        tag: int = 0,
        mask: int = 0,
        sg_list: Sequence[SGE] | None = None,
    ) -> None:
        super().__init__()
        self.wr_id = wr_id
        self.opcode = opcode
        self.flags = flags
        self.next_wr = next_wr
        self.unexpected_cnt = unexpected_cnt
        self.recv_wr_id = recv_wr_id
        self.tag = tag
        self.mask = mask
        self.sg_list = list(sg_list or ())[: num_sge or 0]


class SRQ(PyverbsCM):
    """Receives that several queue pairs share."""

    _kind: ClassVar[str] = "srq"

    def __init__(self, creator: PD | Context, attr: SrqInitAttr) -> None:
        super().__init__()
        self._index = _NO_INDEX
        self._dependents = Dependents("qp")
        if isinstance(creator, PD):
            self._open(creator, attr)
        elif isinstance(attr, SrqInitAttrEx):
            self._open(self._pd_of(attr), attr)
        else:
            raise PyverbsUserError("an SRQ is created by a PD, or by a Context with SrqInitAttrEx")

    def _pd_of(self, attr: SrqInitAttrEx) -> PD:
        if attr.srq_type == e.ibv_srq_type.IBV_SRQT_XRC:
            not_supported("XRC")
        if attr.srq_type == e.ibv_srq_type.IBV_SRQT_TM:
            not_supported("tag matching")
        if attr.pd is None:
            raise PyverbsRDMAError("an SRQ needs a PD", errno.EINVAL)
        return attr.pd

    def _open(self, pd: PD, attr: SrqInitAttr) -> None:
        failed = "Failed to create an SRQ"
        context = pd.ctx
        limits = context.limits
        if not 1 <= attr.max_wr <= limits.max_srq_wr or attr.max_sge > limits.max_srq_sge:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        self.port = context.port
        self._max_sge = max(1, attr.max_sge)
        self._max_depth = limits.max_srq_wr
        with verbs_errors(failed), self.port.nic.engine() as engine:
            self._index = engine.srqs.create(pd.number, attr.max_wr)
            self._depth = attr.max_wr
        self.port.srq_events[self._index] = context.async_events
        pd.add_ref(self)
        self.pd: PD | None = pd

    @property
    def index(self) -> int:
        """Number of the queue in the engine."""
        if self._index == _NO_INDEX:
            raise PyverbsUserError("the shared receive queue is closed")
        return self._index

    def add_ref(self, obj: PyverbsCM) -> None:
        """Close a queue pair before this."""
        self._dependents.add(obj)

    def close(self) -> None:
        """Close the queue pairs that use it, then the queue."""
        if self._index == _NO_INDEX:
            return
        self._dependents.close()
        index, self._index = self._index, _NO_INDEX
        self.port.forget(self.port.srq_events, index)
        with self.port.nic.engine() as engine:
            engine.srqs.destroy(index)
        self.pd = None

    def get_srq_num(self) -> int:
        """Its number, by which only an XRC peer could name it."""
        return self.index

    def modify(self, attr: SrqAttr, comp_mask: int) -> None:
        """Change the size, or set the limit anew."""
        masks = e.ibv_srq_attr_mask
        index, failed = self.index, "Failed to modify the SRQ"
        depth = attr.max_wr if comp_mask & masks.IBV_SRQ_MAX_WR else self._depth
        limit = attr.srq_limit if comp_mask & masks.IBV_SRQ_LIMIT else 0
        if not 1 <= depth <= self._max_depth or limit > depth:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        with verbs_errors(failed), self.port.nic.engine() as engine:
            if depth != self._depth:
                engine.srqs.resize(index, depth)
                self._depth = depth
            if comp_mask & masks.IBV_SRQ_LIMIT:
                engine.srqs.set_limit(index, limit)

    def query(self) -> SrqAttr:
        """Size and limit; the limit is 0 once it has been told."""
        index = self.index
        with self.port.nic.engine() as engine:
            return SrqAttr(self._depth, self._max_sge, engine.srqs.limit(index))

    def post_srq_ops(self, wr: OpsWr, bad_wr: OpsWr | None = None) -> None:
        """Refused: an emulated device has no tag matching."""
        if bad_wr is not None:
            bad_wr.__dict__.update(wr.__dict__)
        not_supported("tag matching")

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post a list of receives; ``bad_wr`` becomes the first that was refused."""
        index = self.index
        requests = list(chain(wr))
        records: list[Any] = []
        code = 0
        for request in requests:
            code = refuse_elements(request, self._max_sge)
            if code:
                break
            records.append(receive_record(request))
        with self.port.nic.engine() as engine:
            posted, full = post_prefix(lambda batch: engine.srqs.post(index, batch), records)
        code = full or code
        if code:
            if bad_wr is not None:
                bad_wr.take(requests[posted])
            raise PyverbsRDMAError("Failed to post receives to the SRQ", code)
