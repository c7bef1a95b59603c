"""What two ends of a connection agree on, and the queue pair attributes that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.link.gid import source_index
from emulator.pyverbs._qp_attributes import QPAttr
from emulator.pyverbs.addr import GID, AHAttr, GlobalRoute
from emulator.pyverbs.fabric import PORT_NUM, Port
from emulator.roce.attributes import REQUIRED, QpMask
from emulator.wire.cm import PathRecord, Rep, Req
from emulator.wire.ip_cm import PortSpace
from kvlane.verbs.enums import AccessFlags, Mtu, QpState, QpType

UDP_QKEY = 0x01234567
"""Q_Key of all datagram queue pairs of connection management (RDMA_UDP_QKEY)."""
DEFAULT_ACK_TIMEOUT_CODE = 14
"""67 ms, unless the program sets the option."""
MIN_RNR_TIMER_CODE = 0
"""655 ms, as Linux has it: with the usual 5 RNR retries a receiver may be 3 s late."""
_PERMISSIVE_LID = 0xFFFF
"""RoCE has no LIDs."""
_HOP_LIMIT = 64
_RATE_100_GBPS = 16
_BEFORE = {
    QpState.INIT: QpState.RESET,
    QpState.RTR: QpState.INIT,
    QpState.RTS: QpState.RTR,
}


def path_to(port: Port, gid: bytes) -> AHAttr:
    """The path from a port to another."""
    index = source_index(port.gids, gid)
    route = GlobalRoute(GID.from_bytes(gid), sgid_index=index, hop_limit=_HOP_LIMIT)
    return AHAttr(is_global=1, port_num=PORT_NUM, gr=route)


def path_record(port: Port, gid: bytes, ack_timeout_code: int) -> PathRecord:
    """The same as a REQ tells it."""
    return PathRecord(
        local_gid=port.gids[source_index(port.gids, gid)],
        remote_gid=gid,
        local_lid=_PERMISSIVE_LID,
        remote_lid=_PERMISSIVE_LID,
        packet_rate=_RATE_100_GBPS,
        hop_limit=_HOP_LIMIT,
        local_ack_timeout=ack_timeout_code,
    )


@dataclass(slots=True)
class Terms:
    """One end's view of a connection; what the peer has not told yet is 0."""

    gid: bytes
    """The peer's."""
    starting_psn: int
    """What this end has told the other: where that is to begin (IBTA 1.7 section 12.7.31)."""
    remote_qpn: int = 0
    remote_psn: int = 0
    """What the other has told this end: where this end is to begin."""
    path_mtu: int = int(Mtu.MTU_1024)
    responder_resources: int = 0
    """READs and atomics of the peer at once that this end answers."""
    initiator_depth: int = 0
    """READs and atomics at once that this end asks for."""
    retry_count: int = 7
    rnr_retry_count: int = 7
    ack_timeout_code: int = DEFAULT_ACK_TIMEOUT_CODE
    vendor_id: int = 0
    """Of the peer's enhanced connection establishment."""
    options: int = 0

    @classmethod
    def of_request(cls, gid: bytes, req: Req, options: int, starting_psn: int) -> Terms:
        """What the peer proposes; its depth is this end's resources, and the reverse."""
        return cls(
            gid=gid,
            starting_psn=starting_psn,
            remote_qpn=req.local_qpn,
            remote_psn=req.starting_psn,
            path_mtu=req.path_mtu,
            responder_resources=req.initiator_depth,
            initiator_depth=req.responder_resources,
            retry_count=req.retry_count,
            rnr_retry_count=req.rnr_retry_count,
            ack_timeout_code=req.primary.local_ack_timeout,
            vendor_id=req.vendor_id,
            options=options,
        )

    def take_reply(self, rep: Rep, options: int) -> None:
        """What the peer has made of the proposal."""
        self.remote_qpn, self.remote_psn = rep.local_qpn, rep.starting_psn
        self.responder_resources, self.initiator_depth = (
            rep.initiator_depth,
            rep.responder_resources,
        )
        self.rnr_retry_count = rep.rnr_retry_count
        self.vendor_id, self.options = rep.vendor_id, options


def path_mtu_fault(path_mtu: int, port_mtu: Mtu) -> str:
    """Why a path MTU that a peer proposes cannot be used; empty when it can."""
    known = path_mtu in list(Mtu)
    if known and path_mtu <= port_mtu:
        return ""
    proposed = f"{Mtu(path_mtu).nbytes} bytes" if known else f"code {path_mtu}, which is none"
    return (
        f"the peer proposes a path MTU of {proposed}, and the port has {port_mtu.nbytes} bytes; "
        f"give the peer's device this MTU"
    )


def initial_attributes(space: PortSpace) -> tuple[QPAttr, int]:
    """What brings a queue pair to INIT, and the mask that names it."""
    kind = QpType.UD if space == PortSpace.UDP else QpType.RC
    attr = QPAttr(qp_state=QpState.INIT, port_num=PORT_NUM)
    attr.qkey = UDP_QKEY
    attr.qp_access_flags = (
        AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
    )
    return attr, _mask(kind, QpState.INIT)


def connected_attributes(port: Port, terms: Terms, state: QpState) -> tuple[QPAttr, int]:
    """What brings a connected queue pair to RTR or RTS, and the mask that names it."""
    attr = QPAttr(qp_state=state, port_num=PORT_NUM, path_mtu=terms.path_mtu)
    attr.ah_attr = path_to(port, terms.gid)
    attr.dest_qp_num = terms.remote_qpn
    attr.rq_psn, attr.sq_psn = terms.starting_psn, terms.remote_psn
    attr.max_dest_rd_atomic = terms.responder_resources
    attr.max_rd_atomic = terms.initiator_depth
    attr.min_rnr_timer = MIN_RNR_TIMER_CODE
    attr.timeout = terms.ack_timeout_code
    attr.retry_cnt, attr.rnr_retry = terms.retry_count, terms.rnr_retry_count
    return attr, _mask(QpType.RC, state)


def datagram_attributes(state: QpState) -> tuple[QPAttr, int]:
    """What brings a datagram queue pair to RTR or RTS, and the mask that names it."""
    return QPAttr(qp_state=state, port_num=PORT_NUM), _mask(QpType.UD, state)


def _mask(kind: QpType, state: QpState) -> int:
    return int(QpMask.STATE | REQUIRED[_BEFORE[state], state][kind])
