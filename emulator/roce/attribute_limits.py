"""Values that attributes of a queue pair may have.

All of a modify is judged before any of it is carried out, so that one that is refused has
changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from emulator.roce.attributes import AddressHandle, QpAttributes, QpMask
from emulator.roce.state import MAX_RD_ATOMIC
from kvlane.errors import VerbsError
from kvlane.verbs.enums import Mtu

_GID_BYTES = 16
_U8 = (1 << 8) - 1
_U16 = (1 << 16) - 1
_U20 = (1 << 20) - 1
_U24 = (1 << 24) - 1
_U32 = (1 << 32) - 1

_Range = tuple[int, int]

_RANGES: dict[QpMask, tuple[str, _Range]] = {
    QpMask.EN_SQD_ASYNC_NOTIFY: ("en_sqd_async_notify", (0, _U8)),
    QpMask.ACCESS_FLAGS: ("qp_access_flags", (0, _U32)),
    QpMask.PKEY_INDEX: ("pkey_index", (0, 0)),  # the table has one entry
    QpMask.PORT: ("port_num", (1, 1)),
    QpMask.QKEY: ("qkey", (0, _U32)),
    QpMask.PATH_MTU: ("path_mtu", (int(min(Mtu)), int(max(Mtu)))),
    QpMask.TIMEOUT: ("timeout", (0, 31)),
    QpMask.RETRY_CNT: ("retry_cnt", (0, 7)),
    QpMask.RNR_RETRY: ("rnr_retry", (0, 7)),
    QpMask.RQ_PSN: ("rq_psn", (0, _U32)),  # of which the low 24 bits count, as on real NICs
    QpMask.MAX_QP_RD_ATOMIC: ("max_rd_atomic", (0, MAX_RD_ATOMIC)),
    QpMask.MIN_RNR_TIMER: ("min_rnr_timer", (0, 31)),
    QpMask.SQ_PSN: ("sq_psn", (0, _U32)),
    QpMask.MAX_DEST_RD_ATOMIC: ("max_dest_rd_atomic", (0, MAX_RD_ATOMIC)),
    QpMask.DEST_QPN: ("dest_qp_num", (0, _U24)),
}

_PATH_RANGES: Mapping[str, _Range] = {
    "udp_port": (1, _U16),
    "sgid_index": (0, _U8),
    "flow_label": (0, _U20),
    "hop_limit": (0, _U8),
    "traffic_class": (0, _U8),
    "sl": (0, 15),
    "port_num": (1, 1),
    "static_rate": (0, _U8),
}


def require_values(new: QpAttributes, mask: QpMask, port_mtu: Mtu) -> None:
    """``VerbsError`` unless every attribute that ``mask`` names has a value it may have."""
    for bit, (name, allowed) in _RANGES.items():
        if mask & bit:
            _require_within(name, getattr(new, name), allowed)
    if mask & QpMask.AV:
        _require_path(new.ah)
    if mask & QpMask.PATH_MTU and new.path_mtu > port_mtu:
        raise VerbsError(
            f"path_mtu {int(new.path_mtu)} ({Mtu(new.path_mtu).nbytes} bytes) is more than the "
            f"port's MTU of {port_mtu.nbytes} bytes; use {int(port_mtu)} or less, or give the "
            f"port a larger mtu_bytes"
        )


def _require_path(path: AddressHandle) -> None:
    if len(path.dgid) != _GID_BYTES:
        raise VerbsError(f"dgid must have {_GID_BYTES} bytes, not {len(path.dgid)}")
    for name, allowed in _PATH_RANGES.items():
        _require_within(f"ah.{name}", getattr(path, name), allowed)


def _require_within(name: str, value: int, allowed: _Range) -> None:
    low, high = allowed
    if not low <= value <= high:
        wanted = str(low) if low == high else f"{low} to {high}"
        raise VerbsError(f"{name} must be {wanted}, not {value}")
