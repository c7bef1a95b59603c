"""Attributes of a queue pair, and which of them a change of state needs or allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag

from emulator.roce.transitions import require_transition
from kvlane.errors import VerbsError
from kvlane.limits import ROCE_V2_UDP_PORT
from kvlane.verbs.enums import QpState, QpType


class QpMask(IntFlag):
    """Which attributes a modify names (``ibv_qp_attr_mask``)."""

    STATE = 1 << 0
    CUR_STATE = 1 << 1
    EN_SQD_ASYNC_NOTIFY = 1 << 2
    ACCESS_FLAGS = 1 << 3
    PKEY_INDEX = 1 << 4
    PORT = 1 << 5
    QKEY = 1 << 6
    AV = 1 << 7
    PATH_MTU = 1 << 8
    TIMEOUT = 1 << 9
    RETRY_CNT = 1 << 10
    RNR_RETRY = 1 << 11
    RQ_PSN = 1 << 12
    MAX_QP_RD_ATOMIC = 1 << 13
    ALT_PATH = 1 << 14
    MIN_RNR_TIMER = 1 << 15
    SQ_PSN = 1 << 16
    MAX_DEST_RD_ATOMIC = 1 << 17
    PATH_MIG_STATE = 1 << 18
    CAP = 1 << 19
    DEST_QPN = 1 << 20


@dataclass(frozen=True, slots=True)
class AddressHandle:
    """A path to a port (``ibv_ah_attr`` as far as RoCEv2 has a use for it)."""

    dgid: bytes = bytes(16)
    udp_port: int = ROCE_V2_UDP_PORT
    """Where the peer's NIC listens; other than 4791 only between emulated NICs."""
    sgid_index: int = 0
    flow_label: int = 0
    hop_limit: int = 64
    traffic_class: int = 0
    sl: int = 0
    port_num: int = 1
    static_rate: int = 0


@dataclass(frozen=True, slots=True)
class QpCaps:
    """Sizes of a queue pair (``ibv_qp_cap``)."""

    max_send_wr: int = 1
    max_recv_wr: int = 1
    max_send_sge: int = 1
    max_recv_sge: int = 1
    max_inline_data: int = 0


@dataclass(slots=True)
class QpAttributes:
    """What can be modified and queried (``ibv_qp_attr``)."""

    qp_state: QpState = QpState.RESET
    path_mtu: int = 0
    """Encoded, 1 for 256 bytes to 5 for 4096."""
    qkey: int = 0
    rq_psn: int = 0
    sq_psn: int = 0
    dest_qp_num: int = 0
    qp_access_flags: int = 0
    ah: AddressHandle = field(default_factory=AddressHandle)
    pkey_index: int = 0
    en_sqd_async_notify: int = 0
    max_rd_atomic: int = 0
    max_dest_rd_atomic: int = 0
    min_rnr_timer: int = 0
    port_num: int = 1
    timeout: int = 0
    retry_cnt: int = 0
    rnr_retry: int = 0


_M = QpMask
_RC_RTR = _M.AV | _M.PATH_MTU | _M.DEST_QPN | _M.RQ_PSN | _M.MAX_DEST_RD_ATOMIC | _M.MIN_RNR_TIMER
_RC_RTS = _M.TIMEOUT | _M.RETRY_CNT | _M.RNR_RETRY | _M.SQ_PSN | _M.MAX_QP_RD_ATOMIC

REQUIRED: dict[tuple[QpState, QpState], dict[QpType, QpMask]] = {
    (QpState.RESET, QpState.INIT): {
        QpType.RC: _M.PKEY_INDEX | _M.PORT | _M.ACCESS_FLAGS,
        QpType.UC: _M.PKEY_INDEX | _M.PORT | _M.ACCESS_FLAGS,
        QpType.UD: _M.PKEY_INDEX | _M.PORT | _M.QKEY,
    },
    (QpState.INIT, QpState.RTR): {
        QpType.RC: _RC_RTR,
        QpType.UC: _M.AV | _M.PATH_MTU | _M.DEST_QPN | _M.RQ_PSN,
        QpType.UD: _M(0),
    },
    (QpState.RTR, QpState.RTS): {
        QpType.RC: _RC_RTS,
        QpType.UC: _M.SQ_PSN,
        QpType.UD: _M.SQ_PSN,
    },
}
"""Attributes without which a transition is refused (IBTA 1.7 section 11.2.5.2, table 91)."""

_CONNECTED_OPTIONAL = _M.ALT_PATH | _M.ACCESS_FLAGS | _M.PATH_MIG_STATE | _M.MIN_RNR_TIMER
OPTIONAL: dict[tuple[QpState, QpState], dict[QpType, QpMask]] = {
    (QpState.INIT, QpState.INIT): {
        QpType.RC: _M.PKEY_INDEX | _M.PORT | _M.ACCESS_FLAGS,
        QpType.UC: _M.PKEY_INDEX | _M.PORT | _M.ACCESS_FLAGS,
        QpType.UD: _M.PKEY_INDEX | _M.PORT | _M.QKEY,
    },
    (QpState.INIT, QpState.RTR): {
        QpType.RC: _M.ALT_PATH | _M.ACCESS_FLAGS | _M.PKEY_INDEX,
        QpType.UC: _M.ALT_PATH | _M.ACCESS_FLAGS | _M.PKEY_INDEX,
        QpType.UD: _M.PKEY_INDEX | _M.QKEY,
    },
    (QpState.RTR, QpState.RTS): {
        QpType.RC: _CONNECTED_OPTIONAL,
        QpType.UC: _CONNECTED_OPTIONAL & ~_M.MIN_RNR_TIMER,
        QpType.UD: _M.QKEY,
    },
    (QpState.RTS, QpState.RTS): {
        QpType.RC: _CONNECTED_OPTIONAL,
        QpType.UC: _CONNECTED_OPTIONAL & ~_M.MIN_RNR_TIMER,
        QpType.UD: _M.QKEY,
    },
    (QpState.RTS, QpState.SQD): dict.fromkeys(QpType, _M.EN_SQD_ASYNC_NOTIFY),
    (QpState.SQD, QpState.SQD): {
        QpType.RC: _CONNECTED_OPTIONAL
        | _M.PKEY_INDEX
        | _M.PORT
        | _M.AV
        | _M.TIMEOUT
        | _M.RETRY_CNT
        | _M.RNR_RETRY
        | _M.MAX_QP_RD_ATOMIC
        | _M.MAX_DEST_RD_ATOMIC,
        QpType.UC: _CONNECTED_OPTIONAL & ~_M.MIN_RNR_TIMER | _M.PKEY_INDEX | _M.AV,
        QpType.UD: _M.PKEY_INDEX | _M.QKEY,
    },
    (QpState.SQD, QpState.RTS): {
        QpType.RC: _CONNECTED_OPTIONAL,
        QpType.UC: _CONNECTED_OPTIONAL & ~_M.MIN_RNR_TIMER,
        QpType.UD: _M.QKEY,
    },
    (QpState.SQE, QpState.RTS): {
        QpType.RC: _M(0),
        QpType.UC: _M.ACCESS_FLAGS,
        QpType.UD: _M.QKEY,
    },
}
"""Attributes that a transition may name besides."""

_ALWAYS = _M.STATE | _M.CUR_STATE


def require_modify(kind: QpType, current: QpState, wanted: QpState, mask: QpMask) -> None:
    """``VerbsError`` unless a modify from ``current`` to ``wanted`` may name exactly ``mask``."""
    require_transition(current, wanted)
    if wanted in (QpState.RESET, QpState.ERR):
        required, optional = _M(0), _M(0)
    else:
        required = REQUIRED.get((current, wanted), {}).get(kind, _M(0))
        optional = OPTIONAL.get((current, wanted), {}).get(kind, _M(0))
    missing = required & ~mask
    if missing:
        raise VerbsError(
            f"{kind.name} from {current.name} to {wanted.name} also needs {_names(missing)}"
        )
    surplus = mask & ~(required | optional | _ALWAYS)
    if surplus:
        raise VerbsError(
            f"{kind.name} from {current.name} to {wanted.name} cannot set {_names(surplus)}"
        )


def _names(mask: QpMask) -> str:
    return ", ".join(bit.name or "" for bit in QpMask if bit & mask)
