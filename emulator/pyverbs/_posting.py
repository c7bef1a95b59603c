"""From work requests of pyverbs to records of the engine, and posting lists of them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from emulator.link.gid import gid_halves
from emulator.pyverbs._structure import signed64
from emulator.pyverbs.fabric import Port
from emulator.pyverbs.libibverbs_enums import ibv_qp_create_send_ops_flags
from emulator.pyverbs.wr import Element, RecvWR, SendWR
from emulator.roce.state import RQE, WQE
from kvlane.errors import QueueFullError, VerbsError
from kvlane.verbs.enums import MwType, QpType, SendFlags, WrOpcode
from kvlane.verbs.records import RecordArray, new_records

if TYPE_CHECKING:
    from emulator.pyverbs.mr import MW, MWBind

Request = TypeVar("Request", SendWR, RecvWR)

_O = WrOpcode
_RC_OPCODES = frozenset(WrOpcode)
_UC_OPCODES = frozenset(
    {
        *(_O.RDMA_WRITE, _O.RDMA_WRITE_WITH_IMM, _O.SEND, _O.SEND_WITH_IMM),
        *(_O.BIND_MW, _O.LOCAL_INV),
    }
)
OPCODES: dict[int, frozenset[WrOpcode]] = {
    QpType.RC: _RC_OPCODES,
    QpType.UC: _UC_OPCODES,
    QpType.UD: frozenset({_O.SEND, _O.SEND_WITH_IMM}),
}
"""What a queue pair of a kind can do (IBTA 1.7 section 11.4.1.1, table 103)."""

_WITH_IMMEDIATE = (_O.RDMA_WRITE_WITH_IMM, _O.SEND_WITH_IMM)
_INLINE_OPCODES = (*_WITH_IMMEDIATE, _O.RDMA_WRITE, _O.SEND)

_OPERATION_BITS: dict[int, int] = {
    _O.FLUSH: int(ibv_qp_create_send_ops_flags.IBV_QP_EX_WITH_FLUSH),
    _O.ATOMIC_WRITE: int(ibv_qp_create_send_ops_flags.IBV_QP_EX_WITH_ATOMIC_WRITE),
}


def operation_bit(opcode: int) -> int:
    """The ``IBV_QP_EX_WITH_`` flag of an operation: 1 << opcode, but for the latest two."""
    return _OPERATION_BITS.get(opcode, 1 << opcode)


def chain(first: Request) -> Iterator[Request]:
    """A work request and those that are linked behind it."""
    request: Request | None = first
    while request is not None:
        yield request
        request = request.next_wr


def put_elements(record: Any, elements: Sequence[Element]) -> None:
    """Write a scatter/gather list into a WQE or RQE."""
    record.num_sge = len(elements)
    record.length = sum(element.length for element in elements)
    for i, element in enumerate(elements):
        record.sge_addr[i] = signed64(element.addr)
        record.sge_length[i] = element.length
        record.sge_lkey[i] = element.lkey


def put_destination(record: Any, wr: SendWR, port: Port) -> None:
    """Write where a datagram goes."""
    assert wr.ah is not None
    path = wr.ah.path
    record.ud_hi, record.ud_lo = gid_halves(path.dgid)
    record.ud_local_hi, record.ud_local_lo = gid_halves(port.gids[path.sgid_index])
    record.ud_port = port.udp_port_of(path.dgid)
    record.ud_traffic_class = path.traffic_class
    record.ud_flow_label = path.flow_label
    record.ud_qpn = wr.remote_qpn
    record.ud_qkey = wr.remote_qkey


def put_bind(record: Any, wr: SendWR) -> None:
    """Write what a window is to open."""
    assert wr.window is not None
    assert wr.bind_info is not None
    record.mw_key = wr.window.rkey
    record.mw_new_key = wr.window_key
    record.mw_lkey = wr.bind_info.mr.lkey
    record.mw_addr = signed64(wr.bind_info.addr)
    record.mw_length = wr.bind_info.length
    record.mw_access = wr.bind_info.mw_access_flags


def send_record(wr: SendWR, port: Port) -> Any:
    """The WQE of a send work request that ``refuse_send`` has accepted."""
    record = new_records(WQE, 1)[0]
    record.wr_id = signed64(wr.wr_id)
    record.opcode = wr.opcode
    record.send_flags = wr.send_flags
    record.imm = socket.ntohl(wr.imm_data) if wr.opcode in _WITH_IMMEDIATE else wr.imm_data
    record.remote_addr = signed64(wr.remote_addr)
    record.rkey = wr.remote_key
    record.compare_add = signed64(wr.compare_add)
    record.swap = signed64(wr.swap)
    if wr.flush is not None:
        record.feth, record.flush_length = wr.flush
    put_elements(record, wr.elements[: wr.num_sge])
    if wr.ah is not None:
        put_destination(record, wr, port)
    if wr.opcode == WrOpcode.BIND_MW:
        put_bind(record, wr)
    return record


def receive_record(wr: RecvWR) -> Any:
    """The RQE of a receive work request."""
    record = new_records(RQE, 1)[0]
    record.wr_id = signed64(wr.wr_id)
    put_elements(record, wr.elements[: wr.num_sge])
    return record


def bind_request(mw: MW, bind: MWBind) -> SendWR:
    """The work request that a bind of a type 1 window comes down to."""
    wr = SendWR(wr_id=bind.wr_id, opcode=WrOpcode.BIND_MW, send_flags=bind.send_flags)
    wr.set_bind_wr(mw, bind.info)
    return wr


def refuse_elements(wr: SendWR | RecvWR, max_sge: int) -> int:
    """Why the scatter/gather list of a work request cannot be posted, as an errno; else 0."""
    return 0 if 0 <= wr.num_sge <= min(max_sge, len(wr.elements)) else errno.EINVAL


def refuse_send(wr: SendWR, kind: int, max_sge: int, max_inline_bytes: int) -> int:
    """Why a send work request cannot be posted, as an errno; else 0."""
    if wr.opcode not in OPCODES[kind] or (kind == QpType.UD and wr.ah is None):
        return errno.EINVAL
    if wr.opcode == WrOpcode.BIND_MW and (wr.window is None or wr.window.type != MwType.TYPE_2):
        return errno.EINVAL
    if wr.opcode == WrOpcode.FLUSH and wr.flush is None:
        return errno.EINVAL
    # The 8 bytes of an ATOMIC WRITE are a part of its request, whatever the limit.
    if wr.send_flags & SendFlags.INLINE and wr.opcode != WrOpcode.ATOMIC_WRITE:
        length = sum(element.length for element in wr.elements[: wr.num_sge])
        if wr.opcode not in _INLINE_OPCODES or length > max_inline_bytes:
            return errno.EINVAL
    return refuse_elements(wr, max_sge)


def join_records(records: Sequence[Any]) -> RecordArray:
    """One array of several records."""
    out = new_records(records[0].dtype, len(records))
    for i, record in enumerate(records):
        out[i] = record
    return out


def post_prefix(post: Callable[[RecordArray], None], records: Sequence[Any]) -> tuple[int, int]:
    """Post as many records as there is room for; return their number and an errno or 0.

    ``post`` takes all of an array or none of it.
    """
    if not records:
        return 0, 0
    code = _post_code(post, records)
    if code == 0:
        return len(records), 0
    for posted, record in enumerate(records):
        code = _post_code(post, [record])
        if code:
            return posted, code
    return len(records), 0


def _post_code(post: Callable[[RecordArray], None], records: Sequence[Any]) -> int:
    try:
        post(join_records(records))
    except QueueFullError:
        return errno.ENOMEM
    except VerbsError:
        return errno.EINVAL
    return 0
