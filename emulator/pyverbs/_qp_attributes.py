"""How a queue pair is to be made, and what of it can be modified."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.pyverbs._structure import i32, text_lines, u8, u16, u32, u64
from emulator.pyverbs.addr import AHAttr
from emulator.pyverbs.base import PyverbsObject
from emulator.pyverbs.cq import CQ, CQEX
from emulator.pyverbs.pyverbs_error import PyverbsUserError
from emulator.pyverbs.srq import SRQ
from emulator.pyverbs.utils import (
    access_flags_to_str,
    mig_state_to_str,
    mtu_to_str,
    qp_state_to_str,
    qp_type_to_str,
)
from kvlane.verbs.enums import Mtu, QpState, QpType

if TYPE_CHECKING:
    from emulator.pyverbs.pd import PD
    from emulator.pyverbs.wq import RwqIndTable, RxHashConf
    from emulator.pyverbs.xrcd import XRCD

_CAPABILITIES = (
    "max_send_wr",
    "max_recv_wr",
    "max_send_sge",
    "max_recv_sge",
    "max_inline_data",
)


class _Capabilities(PyverbsObject):
    """Sizes of the queues, as fields."""

    max_send_wr = u32()
    max_recv_wr = u32()
    max_send_sge = u32()
    max_recv_sge = u32()
    max_inline_data = u32()

    def take_capabilities(self, source: _Capabilities | None) -> None:
        """Copy the sizes of another object; None changes nothing."""
        if source is not None:
            for name in _CAPABILITIES:
                setattr(self, name, getattr(source, name))

    def capability_lines(self, indent: int = 2) -> str:
        """The sizes, for people."""
        lines = [(name.replace("_", " "), getattr(self, name)) for name in _CAPABILITIES]
        return text_lines(*lines, indent=indent)


class QPCap(_Capabilities):
    """Sizes of the queues of a queue pair."""

    def __init__(
        self,
        max_send_wr: int = 1,
        max_recv_wr: int = 10,
        max_send_sge: int = 1,
        max_recv_sge: int = 1,
        max_inline_data: int = 0,
    ) -> None:
        super().__init__()
        self.max_send_wr = max_send_wr
        self.max_recv_wr = max_recv_wr
        self.max_send_sge = max_send_sge
        self.max_recv_sge = max_recv_sge
        self.max_inline_data = max_inline_data

    def __str__(self) -> str:
        return self.capability_lines(indent=0)


class _WithCapabilities(_Capabilities):
    """Attributes that have a ``cap`` besides others."""

    @property
    def cap(self) -> QPCap:
        """A copy of the sizes; assign to change them."""
        cap = QPCap()
        cap.take_capabilities(self)
        return cap

    @cap.setter
    def cap(self, val: QPCap | None) -> None:
        self.take_capabilities(val)


class _InitAttributes(_WithCapabilities):
    """What both forms of creating a queue pair take."""

    qp_type = u32()
    sq_sig_all = i32()

    def __init__(
        self,
        scq: CQ | CQEX | None,
        rcq: CQ | CQEX | None,
        srq: SRQ | None,
        cap: QPCap | None,
        qp_context: object,
    ) -> None:
        super().__init__()
        self.take_capabilities(cap)
        self.send_cq = scq
        self.recv_cq = rcq
        self.srq = srq
        self.qp_context = qp_context

    @property
    def send_cq(self) -> CQ | CQEX | None:
        """Where send work requests complete."""
        return self._send_cq

    @send_cq.setter
    def send_cq(self, val: CQ | CQEX | None) -> None:
        self._send_cq = _require_cq(val)

    @property
    def recv_cq(self) -> CQ | CQEX | None:
        """Where receives complete."""
        return self._recv_cq

    @recv_cq.setter
    def recv_cq(self, val: CQ | CQEX | None) -> None:
        self._recv_cq = _require_cq(val)

    @property
    def srq(self) -> SRQ | None:
        """The shared receive queue that is used instead of an own one."""
        return self._srq

    @srq.setter
    def srq(self, val: SRQ | None) -> None:
        if val is not None and not isinstance(val, SRQ):
            raise TypeError(f"expected an SRQ, got {type(val).__name__}")
        self._srq = val

    def __str__(self) -> str:
        head = text_lines(
            ("QP type", qp_type_to_str(self.qp_type)), ("SQ sig. all", self.sq_sig_all)
        )
        return f"{head}QP caps:\n{self.capability_lines()}"


def _require_cq(cq: CQ | CQEX | None) -> CQ | CQEX | None:
    if cq is not None and not isinstance(cq, (CQ, CQEX)):
        raise PyverbsUserError(f"expected a CQ or a CQEX, got {type(cq).__name__}")
    return cq


class QPInitAttr(_InitAttributes):
    """What a queue pair that a PD creates is to be like."""

    def __init__(
        self,
        qp_type: int = QpType.UD,
        qp_context: object = None,
        scq: CQ | CQEX | None = None,
        rcq: CQ | CQEX | None = None,
        srq: SRQ | None = None,
        cap: QPCap | None = None,
        sq_sig_all: int = 1,
    ) -> None:
        super().__init__(scq, rcq, srq, cap, qp_context)
        self.qp_type = qp_type
        self.sq_sig_all = sq_sig_all


_COMP_MASK_NAMES = {
    1: "PD",
    2: "XRCD",
    4: "Create Flags",
    8: "Max TSO header",
    16: "Indirection Table",
    32: "RX hash",
    64: "Send ops flags",
}
_CREATE_FLAG_NAMES = {
    2: "Block self mcast loopback",
    256: "Scatter FCS",
    512: "CVLAN stripping",
    1024: "Source QPN",
    2048: "PCI write end padding",
}


def _names_of(flags: int, names: dict[int, str]) -> str:
    return "".join(f"{name} " for flag, name in names.items() if flags & flag)


class QPInitAttrEx(_InitAttributes):
    """What a queue pair that a context creates is to be like; ``comp_mask`` says what counts."""

    comp_mask = u32()
    create_flags = u32()
    max_tso_header = u16()
    source_qpn = u32()
    send_ops_flags = u64()

    def __init__(  # noqa: PLR0913 -- the signature of pyverbs
        self,
        qp_type: int = QpType.UD,
        qp_context: object = None,
        scq: CQ | CQEX | None = None,
        rcq: CQ | CQEX | None = None,
        srq: SRQ | None = None,
        cap: QPCap | None = None,
        sq_sig_all: int = 0,
        comp_mask: int = 0,
        pd: PD | None = None,
        xrcd: XRCD | None = None,
        create_flags: int = 0,
        max_tso_header: int = 0,
        source_qpn: int = 0,
        hash_conf: RxHashConf | None = None,
        ind_table: RwqIndTable | None = None,
        send_ops_flags: int = 0,
    ) -> None:
        super().__init__(scq, rcq, srq, cap, qp_context)
        self.qp_type = qp_type
        self.sq_sig_all = sq_sig_all
        self.comp_mask = comp_mask
        self.pd = pd
        self.xrcd = xrcd
        self.create_flags = create_flags
        self.max_tso_header = max_tso_header
        self.source_qpn = source_qpn
        self.hash_conf = hash_conf
        self.ind_table = ind_table
        self.send_ops_flags = send_ops_flags

    def mask_to_str(self, mask: int) -> str:
        """Names of the bits of a ``comp_mask``, each followed by a space."""
        return _names_of(mask, _COMP_MASK_NAMES)

    def flags_to_str(self, flags: int) -> str:
        """Names of creation flags, each followed by a space."""
        return _names_of(flags, _CREATE_FLAG_NAMES)

    def __str__(self) -> str:
        return super().__str__() + text_lines(
            ("comp mask", self.mask_to_str(self.comp_mask)),
            ("create flags", self.flags_to_str(self.create_flags)),
            ("max TSO header", self.max_tso_header),
            ("Source QPN", self.source_qpn),
        )


class QPAttr(_WithCapabilities):
    """What of a queue pair can be modified and queried; a mask says what of it counts."""

    qp_state = u32()
    cur_qp_state = u32()
    path_mtu = u32()
    path_mig_state = u32()
    qkey = u32()
    rq_psn = u32()
    sq_psn = u32()
    dest_qp_num = u32()
    qp_access_flags = u32()
    pkey_index = u16()
    alt_pkey_index = u16()
    en_sqd_async_notify = u8()
    sq_draining = u8()
    max_rd_atomic = u8()
    max_dest_rd_atomic = u8()
    min_rnr_timer = u8()
    port_num = u8()
    timeout = u8()
    retry_cnt = u8()
    rnr_retry = u8()
    alt_port_num = u8()
    alt_timeout = u8()
    rate_limit = u32()

    def __init__(
        self,
        qp_state: int = QpState.INIT,
        cur_qp_state: int = QpState.RESET,
        port_num: int = 1,
        path_mtu: int = Mtu.MTU_1024,
    ) -> None:
        super().__init__()
        self.qp_state = qp_state
        self.cur_qp_state = cur_qp_state
        self.port_num = port_num
        self.path_mtu = path_mtu
        self._path = AHAttr(is_global=0)
        self._alternate_path = AHAttr(is_global=0)

    @property
    def ah_attr(self) -> AHAttr:
        """A copy of the path to the peer; assign to change it."""
        return _copied(self._path)

    @ah_attr.setter
    def ah_attr(self, val: AHAttr | None) -> None:
        if val is not None:
            self._path = _copied(val)

    @property
    def alt_ah_attr(self) -> AHAttr:
        """A copy of the alternate path; assign to change it."""
        return _copied(self._alternate_path)

    @alt_ah_attr.setter
    def alt_ah_attr(self, val: AHAttr | None) -> None:
        if val is not None:
            self._alternate_path = _copied(val)

    def __str__(self) -> str:
        head = text_lines(
            ("QP state", qp_state_to_str(self.qp_state)),
            ("QP current state", qp_state_to_str(self.cur_qp_state)),
            ("Path MTU", mtu_to_str(self.path_mtu)),
            ("Path mig. state", mig_state_to_str(self.path_mig_state)),
            ("QKey", self.qkey),
            ("RQ PSN", self.rq_psn),
            ("SQ PSN", self.sq_psn),
            ("Dest QP number", self.dest_qp_num),
            ("QP access flags", access_flags_to_str(self.qp_access_flags)),
        )
        tail = text_lines(*((name.replace("_", " "), getattr(self, name)) for name in _LAST_LINES))
        return (
            f"{head}QP caps:\n{self.capability_lines()}"
            f"AH Attr:\n{self._path}Alt. AH Attr:\n{self._alternate_path}{tail}"
        )


def _copied(path: AHAttr) -> AHAttr:
    return AHAttr(
        dlid=path.dlid,
        sl=path.sl,
        src_path_bits=path.src_path_bits,
        static_rate=path.static_rate,
        is_global=path.is_global,
        port_num=path.port_num,
        gr=path.route,
    )


_LAST_LINES = (
    *("pkey_index", "alt_pkey_index", "en_sqd_async_notify", "sq_draining"),
    *("max_rd_atomic", "max_dest_rd_atomic", "min_rnr_timer", "port_num", "timeout"),
    *("retry_cnt", "rnr_retry", "alt_port_num", "alt_timeout", "rate_limit"),
)
