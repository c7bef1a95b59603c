"""Queue pairs."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, ClassVar

from emulator.pyverbs import libibverbs_enums as e
from emulator.pyverbs._posting import (
    OPCODES,
    bind_request,
    chain,
    operation_bit,
    post_prefix,
    receive_record,
    refuse_elements,
    refuse_send,
    send_record,
)
from emulator.pyverbs._qp_attributes import QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from emulator.pyverbs._structure import PlainObject, text_lines, u32
from emulator.pyverbs.addr import AHAttr
from emulator.pyverbs.base import Dependents, PyverbsCM, not_supported, verbs_errors
from emulator.pyverbs.cq import CQ, CQEX
from emulator.pyverbs.device import Context
from emulator.pyverbs.mr import MW, MWBind
from emulator.pyverbs.pd import PD
from emulator.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from emulator.pyverbs.srq import SRQ
from emulator.pyverbs.utils import qp_state_to_str, qp_type_to_str
from emulator.pyverbs.wr import RecvWR, SendWR
from emulator.roce.attributes import REQUIRED, AddressHandle, QpAttributes, QpCaps, QpMask
from kvlane.verbs.enums import MwType, QpState, QpType

_NO_INDEX = -1
_INIT_MASKS = e.ibv_qp_init_attr_mask
_SUPPORTED_INIT_MASK = (
    _INIT_MASKS.IBV_QP_INIT_ATTR_PD
    | _INIT_MASKS.IBV_QP_INIT_ATTR_CREATE_FLAGS
    | _INIT_MASKS.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
)
_UNSUPPORTED_TYPES = {
    int(e.ibv_qp_type.IBV_QPT_RAW_PACKET): "raw packet queue pairs",
    int(e.ibv_qp_type.IBV_QPT_XRC_SEND): "XRC",
    int(e.ibv_qp_type.IBV_QPT_XRC_RECV): "XRC",
    int(e.ibv_qp_type.IBV_QPT_DRIVER): "queue pairs of a driver's own type",
}

_PLAIN_ATTRIBUTES = (
    *("path_mtu", "qkey", "rq_psn", "sq_psn", "dest_qp_num", "qp_access_flags", "pkey_index"),
    *("en_sqd_async_notify", "max_rd_atomic", "max_dest_rd_atomic", "min_rnr_timer"),
    *("port_num", "timeout", "retry_cnt", "rnr_retry"),
)
"""Attributes that have the same name and value here and in the engine."""


class ECE(PlainObject):
    """Options of a vendor's enhanced connection establishment; an emulated device has none."""

    vendor_id = u32()
    options = u32()
    comp_mask = u32()

    def __init__(self, vendor_id: int = 0, options: int = 0, comp_mask: int = 0) -> None:
        super().__init__()
        self.vendor_id = vendor_id
        self.options = options
        self.comp_mask = comp_mask

    def __str__(self) -> str:
        return "ECE:\n" + text_lines(
            ("Vendor ID", f"0x{self.vendor_id:x}"),
            ("Options", f"0x{self.options:x}"),
            ("Comp Mask", f"0x{self.comp_mask:x}"),
        )


class QP(PyverbsCM):
    """A queue pair.

    With ``qp_attr`` it is brought on as far as it goes without a peer: UD to RTS, RC and UC
    to INIT.
    """

    _kind: ClassVar[str] = "qp"

    def __init__(
        self,
        creator: PD | Context,
        init_attr: QPInitAttr | QPInitAttrEx,
        qp_attr: QPAttr | None = None,
    ) -> None:
        super().__init__()
        self._index = _NO_INDEX
        self._dependents = Dependents("mw", "flow")
        self.pd: PD | None = None
        self.context: Context | None = None
        self.scq: CQ | CQEX | None = None
        self.rcq: CQ | CQEX | None = None
        self.srq: SRQ | None = None
        if isinstance(creator, Context):
            self.context = creator
            pd = _pd_of(init_attr)
        else:
            if not isinstance(creator, PD) or not isinstance(init_attr, QPInitAttr):
                raise TypeError(
                    "a QP is created by a PD with a QPInitAttr, or by a Context with a QPInitAttrEx"
                )
            pd = creator
        self._open(pd, init_attr)
        if qp_attr is not None:
            self._bring_up(qp_attr)

    def _open(self, pd: PD, attr: QPInitAttr | QPInitAttrEx) -> None:
        kind = _require_kind(attr.qp_type)
        context = pd.ctx
        caps = _require_caps(attr, context)
        send_cq, recv_cq = attr.send_cq, attr.recv_cq
        if send_cq is None or recv_cq is None:
            raise PyverbsRDMAError("a QP needs two CQs", errno.EINVAL)
        if any(part.port is not context.port for part in (send_cq, recv_cq, attr.srq) if part):
            raise PyverbsRDMAError("CQs and SRQ must be of the PD's device", errno.EINVAL)
        with verbs_errors("Failed to create a QP"), context.port.nic.engine() as engine:
            self._index = engine.qps.create(
                kind,
                pd=pd.number,
                send_cq=send_cq.index,
                recv_cq=recv_cq.index,
                caps=caps,
                srq=-1 if attr.srq is None else attr.srq.index,
                sq_sig_all=bool(attr.sq_sig_all),
            )
            self._number = engine.qps.number(self._index)
        self._kind_of_qp = kind
        self.caps = caps
        self.port = context.port
        self._sq_sig_all = attr.sq_sig_all
        self.port.qp_events[self._number] = context.async_events
        self._refer_to(pd, send_cq, recv_cq, attr.srq)

    def _refer_to(self, pd: PD, send_cq: CQ | CQEX, recv_cq: CQ | CQEX, srq: SRQ | None) -> None:
        """Keep alive what it uses, and be closed before any of that."""
        self.pd = pd
        self.scq, self.rcq, self.srq = send_cq, recv_cq, srq
        for parent in (pd, send_cq, recv_cq, srq, self.context):
            if parent is not None:
                parent.add_ref(self)

    def _bring_up(self, qp_attr: QPAttr) -> None:
        try:
            if self._kind_of_qp == QpType.UD:
                self.to_rts(qp_attr)
            else:
                self.to_init(qp_attr)
        except PyverbsError:
            self.close()
            raise

    def add_ref(self, obj: PyverbsCM) -> None:
        """Close an object before this."""
        self._dependents.add(obj)

    def close(self) -> None:
        """Close what depends on it, then the queue pair; nothing of it touches memory then."""
        if self._index == _NO_INDEX:
            return
        self._dependents.close()
        index, self._index = self._index, _NO_INDEX
        self.port.forget(self.port.qp_events, self._number)
        with self.port.nic.engine() as engine:
            engine.qps.destroy(index)
        self.pd = self.context = self.scq = self.rcq = self.srq = None

    @property
    def index(self) -> int:
        """Number of the queue pair's record in the engine."""
        if self._index == _NO_INDEX:
            raise PyverbsUserError("the queue pair is closed")
        return self._index

    # State and attributes

    def to_init(self, qp_attr: QPAttr) -> None:
        """To INIT, with the attributes that this takes."""
        self._to(qp_attr, QpState.RESET, QpState.INIT)

    def to_rtr(self, qp_attr: QPAttr) -> None:
        """To RTR, by way of INIT where needed."""
        if self.qp_state != QpState.INIT:
            self.to_init(qp_attr)
        self._to(qp_attr, QpState.INIT, QpState.RTR)

    def to_rts(self, qp_attr: QPAttr) -> None:
        """To RTS, by way of INIT and RTR where needed."""
        if self.qp_state != QpState.RTR:
            self.to_rtr(qp_attr)
        self._to(qp_attr, QpState.RTR, QpState.RTS)

    def _to(self, qp_attr: QPAttr, before: QpState, after: QpState) -> None:
        qp_attr.qp_state = after
        mask = QpMask.STATE | REQUIRED[before, after][self._kind_of_qp]
        self._modify(qp_attr, mask, f"Failed to modify the QP to {after.name}")

    def modify(self, qp_attr: QPAttr, comp_mask: int) -> None:
        """Change the attributes that ``comp_mask`` names, and the state if it is one of them."""
        self._modify(qp_attr, comp_mask, "Failed to modify the QP")

    def _modify(self, qp_attr: QPAttr, mask: int, failed: str) -> None:
        index = self.index
        attributes = self._engine_attributes(qp_attr, mask, failed)
        with verbs_errors(failed), self.port.nic.engine() as engine:
            engine.qps.modify(index, attributes, QpMask(int(mask)))

    def _engine_attributes(self, qp_attr: QPAttr, mask: int, failed: str) -> QpAttributes:
        attributes = QpAttributes()
        for name in _PLAIN_ATTRIBUTES:
            setattr(attributes, name, getattr(qp_attr, name))
        if mask & QpMask.STATE:
            if qp_attr.qp_state not in list(QpState):
                raise PyverbsRDMAError(failed, errno.EINVAL)
            attributes.qp_state = QpState(qp_attr.qp_state)
        if mask & QpMask.AV:
            try:
                attributes.ah = qp_attr.ah_attr.address_handle(self.port)
            except ValueError as error:
                raise PyverbsRDMAError(failed, errno.EINVAL) from error
        return attributes

    def query(self, attr_mask: int) -> tuple[QPAttr, QPInitAttr]:  # noqa: ARG002 -- pyverbs'
        """All attributes as they are, whatever ``attr_mask`` names, and how it was created."""
        index = self.index
        with self.port.nic.engine() as engine:
            attributes, caps = engine.qps.query(index)
            draining = engine.qps.is_draining(index)
        cap = QPCap(
            caps.max_send_wr,
            caps.max_recv_wr,
            caps.max_send_sge,
            caps.max_recv_sge,
            caps.max_inline_data,
        )
        attr = QPAttr(qp_state=attributes.qp_state, cur_qp_state=attributes.qp_state)
        for name in _PLAIN_ATTRIBUTES:
            setattr(attr, name, getattr(attributes, name))
        attr.cap = cap
        attr.sq_draining = int(draining)
        if attributes.ah != AddressHandle():
            attr.ah_attr = AHAttr.of_address_handle(attributes.ah)
        init_attr = QPInitAttr(
            self._kind_of_qp, None, self.scq, self.rcq, self.srq, cap, self._sq_sig_all
        )
        return attr, init_attr

    def set_ece(self, ece: ECE) -> None:
        """Refused, unless ``ece`` names no vendor, which asks for nothing."""
        if ece.vendor_id:
            not_supported("enhanced connection establishment")

    def query_ece(self) -> ECE:
        """That of no vendor."""
        return ECE()

    def query_data_in_order(self, op: int, flags: int = 0) -> int:  # noqa: ARG002 -- pyverbs'
        """0: no order in which the bytes of a message appear in memory is promised."""
        return 0

    @property
    def qp_type(self) -> int:
        """The kind of transport."""
        return int(self._kind_of_qp)

    @property
    def qp_state(self) -> int:
        """The state now."""
        index = self.index
        with self.port.nic.engine() as engine:
            return int(engine.qps.state(index))

    @property
    def qp_num(self) -> int:
        """The number by which peers address it."""
        return self._number

    # Posting

    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """Post a list of work requests; ``bad_wr`` becomes the first that was refused."""
        kind, caps = self._kind_of_qp, self.caps
        self._post(
            list(chain(wr)),
            bad_wr,
            refuse=lambda w: refuse_send(w, kind, caps.max_send_sge, caps.max_inline_data),
            record=lambda w: send_record(w, self.port),
            post=lambda qps, index, batch: qps.post_work(index, batch),
        )

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post a list of receives; ``bad_wr`` becomes the first that was refused."""
        # With a shared receive queue, receives are posted there and nowhere else.
        max_sge = self.caps.max_recv_sge
        shared = errno.EINVAL if self.srq is not None else 0
        self._post(
            list(chain(wr)),
            bad_wr,
            refuse=lambda w: shared or refuse_elements(w, max_sge),
            record=receive_record,
            post=lambda qps, index, batch: qps.post_receives(index, batch),
        )

    def _post(
        self,
        requests: list[Any],
        bad_wr: Any,
        *,
        refuse: Callable[[Any], int],
        record: Callable[[Any], Any],
        post: Callable[[Any, int, Any], None],
    ) -> None:
        index = self.index
        records: list[Any] = []
        refused = 0
        for request in requests:
            refused = refuse(request)
            if refused:
                break
            records.append(record(request))
        with self.port.nic.engine() as engine:
            posted, failed = post_prefix(lambda batch: post(engine.qps, index, batch), records)
        code = failed or refused
        if code:
            if bad_wr is not None:
                bad_wr.take(requests[posted])
            raise PyverbsRDMAError("Failed to post work requests", code)

    def bind_mw(self, mw: MW, mw_bind: MWBind) -> None:
        """Bind a type 1 window; it has its new key at once."""
        if mw.type != MwType.TYPE_1:
            raise PyverbsRDMAError("Failed to bind the MW", errno.EINVAL)
        index = self.index
        record = send_record(bind_request(mw, mw_bind), self.port)
        with self.port.nic.engine() as engine:
            _, code = post_prefix(lambda batch: engine.qps.post_work(index, batch), [record])
        if code:
            raise PyverbsRDMAError("Failed to bind the MW", code)
        mw.rkey = int(record.mw_new_key)

    def __str__(self) -> str:
        return text_lines(
            ("QP type", qp_type_to_str(self.qp_type)),
            ("  number", self.qp_num),
            ("  state", qp_state_to_str(self.qp_state)),
        )


def _pd_of(attr: QPInitAttr | QPInitAttrEx) -> PD:
    """The PD of a queue pair that a context creates; refuses what cannot be had."""
    if not isinstance(attr, QPInitAttrEx):
        raise TypeError("a Context creates a QP with a QPInitAttrEx")
    _require_kind(attr.qp_type)
    mask = attr.comp_mask
    if mask & ~_SUPPORTED_INIT_MASK:
        not_supported(f"creation attributes ({attr.mask_to_str(mask & ~_SUPPORTED_INIT_MASK)})")
    if mask & _INIT_MASKS.IBV_QP_INIT_ATTR_CREATE_FLAGS and attr.create_flags:
        not_supported(f"creation flags ({attr.flags_to_str(attr.create_flags)})")
    if mask & _INIT_MASKS.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS:
        legal = sum(operation_bit(opcode) for opcode in OPCODES[attr.qp_type])
        if attr.send_ops_flags & ~legal:
            not_supported(f"send operations 0x{attr.send_ops_flags & ~legal:x}")
    if attr.pd is None or not mask & _INIT_MASKS.IBV_QP_INIT_ATTR_PD:
        raise PyverbsRDMAError("a QP needs a PD, named in comp_mask", errno.EINVAL)
    return attr.pd


def _require_kind(qp_type: int) -> QpType:
    if qp_type in _UNSUPPORTED_TYPES:
        not_supported(_UNSUPPORTED_TYPES[qp_type])
    try:
        return QpType(qp_type)
    except ValueError:
        raise PyverbsRDMAError(f"there is no QP type {qp_type}", errno.EINVAL) from None


def _require_caps(attr: QPInitAttr | QPInitAttrEx, context: Context) -> QpCaps:
    limits = context.limits
    recv_wr = 0 if attr.srq is not None else attr.max_recv_wr
    if max(attr.max_send_wr, recv_wr) > limits.max_qp_wr:
        raise PyverbsRDMAError(f"a queue has at most {limits.max_qp_wr} entries", errno.EINVAL)
    return QpCaps(
        max_send_wr=attr.max_send_wr,
        max_recv_wr=recv_wr,
        max_send_sge=attr.max_send_sge,
        max_recv_sge=attr.max_recv_sge,
        max_inline_data=attr.max_inline_data,
    )
