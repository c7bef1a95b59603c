"""Numbers of libibverbs that only this backend needs.

pyverbs offers them too, but release 44 has them in ``pyverbs.enums`` and release 59 in
``pyverbs.libibverbs_enums``. They are part of the C library's ABI, so they are
written here once, as those that all backends share are in ``kvlane.verbs.enums``.
"""

from __future__ import annotations

from enum import IntEnum

QP_STATE_MASK = 1
"""Names the state in a query of a queue pair (``IBV_QP_STATE``)."""


class PortState(IntEnum):
    """State of a port (``ibv_port_state``)."""

    NOP = 0
    DOWN = 1
    INIT = 2
    ARMED = 3
    ACTIVE = 4
    ACTIVE_DEFER = 5


class LinkLayer(IntEnum):
    """What a port is plugged into (``IBV_LINK_LAYER_*``)."""

    UNSPECIFIED = 0
    INFINIBAND = 1
    ETHERNET = 2


class GidType(IntEnum):
    """What ``ibv_query_gid_type`` tells of a GID (``ibv_gid_type_sysfs``)."""

    IB_OR_ROCE_V1 = 0
    ROCE_V2 = 1
