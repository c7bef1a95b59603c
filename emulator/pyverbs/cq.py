"""Completion queues, completion channels, and the completions themselves."""

from __future__ import annotations

import errno
import socket
import time
from typing import TYPE_CHECKING, Any, ClassVar

from emulator.pyverbs import libibverbs_enums as e
from emulator.pyverbs._structure import i32, text_lines, u8, u16, u32, u64, unsigned64
from emulator.pyverbs.base import Dependents, PyverbsCM, PyverbsObject, not_supported, verbs_errors
from emulator.pyverbs.fabric import EventQueue
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from emulator.roce.state import ARM_NEXT, ARM_SOLICITED
from kvlane.verbs.enums import WcFlags, WcOpcode, WcStatus
from kvlane.verbs.records import WC as WC_RECORD
from kvlane.verbs.records import new_records

if TYPE_CHECKING:
    from emulator.pyverbs.device import Context
    from emulator.pyverbs.pd import PD

_NO_INDEX = -1
_POLL_FAILED = "Failed to poll the CQ"


class CompChannel(PyverbsCM):
    """Tells of completion queues that have become ready; ``fd`` can be waited for."""

    _kind: ClassVar[str] = "comp_channel"

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.events: EventQueue[int] | None = None
        self.context = context
        self._dependents = Dependents("cq")
        self.events = EventQueue()
        context.add_ref(self)

    def add_ref(self, obj: _CompletionQueue) -> None:
        """Close a queue before this."""
        self._dependents.add(obj)

    def close(self) -> None:
        """Close the queues that it tells of, then the descriptor."""
        if self.events is not None:
            self._dependents.close()
            self.events.close()
            self.events = None

    def get_cq_event(self, expected_cq: CQ) -> None:
        """Wait for the next event, which must be of ``expected_cq``; acknowledge it some time."""
        events = self._require_open()
        try:
            index = events.get()
        except BlockingIOError as error:
            raise PyverbsRDMAError("Failed to get a CQ event", errno.EAGAIN) from error
        if index != expected_cq.handle:
            raise PyverbsRDMAError("an event of another CQ than the expected one", errno.EINVAL)
        expected_cq.num_events += 1

    @property
    def fd(self) -> int:
        """Readable while events wait."""
        return self._require_open().fd

    def _require_open(self) -> EventQueue[int]:
        if self.events is None:
            raise PyverbsUserError("the completion channel is closed")
        return self.events


class _CompletionQueue(PyverbsCM):
    """What both kinds of queue are to the device."""

    _kind: ClassVar[str] = "cq"

    def __init__(self) -> None:
        super().__init__()
        self._index = _NO_INDEX
        self.context: Context | None = None
        self.channel: CompChannel | None = None
        self.num_events = 0
        self._dependents = Dependents("qp", "wq")

    def _open(
        self, context: Context, cqe: int, channel: CompChannel | None, comp_vector: int
    ) -> None:
        failed = f"Failed to create a CQ of {cqe} entries"
        if not 1 <= cqe <= context.limits.max_cqe:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        if not 0 <= comp_vector < context.num_comp_vectors:
            raise PyverbsRDMAError(f"{failed} on vector {comp_vector}", errno.EINVAL)
        self.port = context.port
        with verbs_errors(failed), self.port.nic.engine() as engine:
            self._index = engine.cqs.create(cqe)
        self._depth = cqe
        if channel is not None:
            self.port.channels[self._index] = channel._require_open()
            channel.add_ref(self)
            self.channel = channel
        self.port.cq_events[self._index] = context.async_events
        self.context = context
        context.add_ref(self)

    def add_ref(self, obj: PyverbsCM) -> None:
        """Close an object that uses the queue before this."""
        self._dependents.add(obj)

    def close(self) -> None:
        """Close what uses the queue, then the queue."""
        if self._index == _NO_INDEX:
            return
        self._dependents.close()
        index, self._index = self._index, _NO_INDEX
        self.port.forget_cq(index)
        with self.port.nic.engine() as engine:
            engine.cqs.destroy(index)
        self.context = self.channel = None

    @property
    def handle(self) -> int:
        """Number of the queue on its device; -1 when closed."""
        return self._index

    @property
    def index(self) -> int:
        """The same, of a queue that is open."""
        if self._index == _NO_INDEX:
            raise PyverbsUserError("the completion queue is closed")
        return self._index


class CQ(_CompletionQueue):
    """A completion queue that is polled for ``WC`` objects."""

    def __init__(
        self,
        context: Context,
        cqe: int,
        cq_context: object = None,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        super().__init__()
        self.cq_context = cq_context
        self._open(context, int(cqe), channel, comp_vector)

    def resize(self, cqe: int) -> None:
        """Make room for at least ``cqe`` completions; EINVAL when more are waiting."""
        failed = f"Failed to resize the CQ to {cqe} entries"
        index = self.index
        assert self.context is not None
        if not 1 <= cqe <= self.context.limits.max_cqe:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        with verbs_errors(failed), self.port.nic.engine() as engine:
            engine.cqs.resize(index, int(cqe))
        self._depth = int(cqe)

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Up to ``num_entries`` completions, oldest first, and how many they are."""
        if num_entries < 1:
            return 0, []
        nic, index = self.port.nic, self.index
        out = new_records(WC_RECORD, num_entries)
        with verbs_errors(_POLL_FAILED):
            # An empty queue lets the device work: its thread may be waiting for this one.
            count = nic.poll_cq(index, out)
            if count == 0 and nic.progress():
                count = nic.poll_cq(index, out)
        return count, [_wc_of(out[i]) for i in range(count)]

    def req_notify(self, solicited_only: bool = False) -> None:
        """Tell the channel once of the next completion, or of the next solicited or failed one."""
        index = self.index
        with self.port.nic.engine() as engine:
            engine.cqs.arm(index, ARM_SOLICITED if solicited_only else ARM_NEXT)

    def ack_events(self, num_events: int) -> None:
        """Acknowledge events that were got from the channel."""
        self.num_events -= num_events

    @property
    def comp_channel(self) -> CompChannel | None:
        """The channel that tells of this queue."""
        return self.channel

    @property
    def cqe(self) -> int:
        """Completions that fit."""
        return self._depth

    def __str__(self) -> str:
        return "CQ\n" + text_lines(("Handle", self.handle), ("CQEs", self.cqe))


class CqInitAttrEx(PyverbsObject):
    """How an extended completion queue is to be made."""

    cqe = u32()
    comp_vector = i32()
    wc_flags = u64()
    comp_mask = u32()
    flags = u32()

    def __init__(
        self,
        cqe: int = 100,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
        wc_flags: int = 0,
        comp_mask: int = 0,
        flags: int = 0,
        parent_domain: PD | None = None,
    ) -> None:
        super().__init__()
        self.cqe = cqe
        self.comp_channel = channel
        self.comp_vector = comp_vector
        self.wc_flags = wc_flags
        self.comp_mask = comp_mask
        self.flags = flags
        self.parent_domain = parent_domain
        self.cq_context: object = None

    def __str__(self) -> str:
        return text_lines(
            ("Number of CQEs", self.cqe),
            ("WC flags", create_wc_flags_to_str(self.wc_flags)),
            ("comp mask", self.comp_mask),
            ("flags", self.flags),
        )


_WC_FIELDS = e.ibv_create_cq_wc_flags
_TIMES = (
    _WC_FIELDS.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | _WC_FIELDS.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
)
_SUPPORTED_FIELDS = e.IBV_WC_STANDARD_FLAGS | _TIMES
_SUPPORTED_CREATE_FLAGS = e.ibv_create_cq_attr_flags.IBV_CREATE_CQ_ATTR_SINGLE_THREADED


class CQEX(_CompletionQueue):
    """A completion queue whose completions are read field by field, in batches.

    Between a ``start_poll`` that returned 0 and ``end_poll`` the present completion can be
    read; ``poll_next`` goes on to the next. What ``wc_flags`` did not ask for has no reader.
    """

    def __init__(self, context: Context, init_attr: CqInitAttrEx | None = None) -> None:
        super().__init__()
        attr = CqInitAttrEx() if init_attr is None else init_attr
        masks = e.ibv_cq_init_attr_mask
        if attr.wc_flags & ~_SUPPORTED_FIELDS:
            not_supported("completion fields that an emulated NIC does not fill")
        if (
            attr.comp_mask & masks.IBV_CQ_INIT_ATTR_MASK_FLAGS
            and attr.flags & ~_SUPPORTED_CREATE_FLAGS
        ):
            not_supported(f"creation flags 0x{attr.flags:x}")
        self._open(context, attr.cqe, attr.comp_channel, attr.comp_vector)
        if attr.parent_domain is not None:
            attr.parent_domain.add_ref(self)
        self._fields = attr.wc_flags
        self._record = new_records(WC_RECORD, 1)
        self._time_ns = 0
        self._polling = False
        self.wr_id = 0
        self.status = 0

    def start_poll(self, attr: PollCqAttr | None) -> int:
        """Go to the oldest completion: 0, or ENOENT without one."""
        if attr is not None and attr.comp_mask:
            return errno.EINVAL
        result = self.poll_next()
        self._polling = result == 0
        return result

    def poll_next(self) -> int:
        """Go to the next completion: 0, or ENOENT without one."""
        if not (self._poll_one() or (self.port.nic.progress() and self._poll_one())):
            return errno.ENOENT
        record = self._record[0]
        self.wr_id = unsigned64(int(record.wr_id))
        self.status = int(record.status)
        return 0

    def _poll_one(self) -> int:
        nic, index = self.port.nic, self.index
        with verbs_errors(_POLL_FAILED):
            if not self._fields & _TIMES:
                return nic.poll_cq(index, self._record)
            with nic.engine() as engine:
                self._time_ns = engine.cqs.oldest_time(index)
                return engine.cqs.poll(index, self._record)

    def end_poll(self) -> None:
        """End the batch."""
        self._polling = False

    def _present(self, field: int = 0) -> Any:
        """The record of the present completion, if the queue was made with ``field``."""
        if not self._polling:
            raise PyverbsUserError("there is no completion to read: start_poll must return 0")
        if field & ~self._fields:
            name = _WC_FIELDS(field).name
            raise PyverbsUserError(f"the queue was created without {name} in wc_flags")
        return self._record[0]

    def read_opcode(self) -> int:
        """What was completed."""
        return int(self._present().opcode)

    def read_vendor_err(self) -> int:
        """The emulated device has no error codes of its own."""
        self._present()
        return 0

    def read_wc_flags(self) -> int:
        """What it carries besides."""
        return int(self._present().wc_flags)

    def read_byte_len(self) -> int:
        """Bytes moved."""
        return int(self._present(_WC_FIELDS.IBV_WC_EX_WITH_BYTE_LEN).byte_len)

    def read_imm_data(self) -> int:
        """Immediate data in network order, or the key that was invalidated."""
        return _imm_data(self._present(_WC_FIELDS.IBV_WC_EX_WITH_IMM))

    def read_qp_num(self) -> int:
        """The local queue pair."""
        return int(self._present(_WC_FIELDS.IBV_WC_EX_WITH_QP_NUM).qp_num)

    def read_src_qp(self) -> int:
        """The remote queue pair."""
        return int(self._present(_WC_FIELDS.IBV_WC_EX_WITH_SRC_QP).src_qp)

    def read_slid(self) -> int:
        """0: Ethernet has no LIDs."""
        self._present(_WC_FIELDS.IBV_WC_EX_WITH_SLID)
        return 0

    def read_sl(self) -> int:
        """0: Ethernet has no service level."""
        self._present(_WC_FIELDS.IBV_WC_EX_WITH_SL)
        return 0

    def read_dlid_path_bits(self) -> int:
        """0: Ethernet has no LIDs."""
        self._present(_WC_FIELDS.IBV_WC_EX_WITH_DLID_PATH_BITS)
        return 0

    def read_timestamp(self) -> int:
        """When it was completed, ns of the device's clock."""
        self._present(_WC_FIELDS.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
        return self._time_ns

    def read_completion_wallclock_ns(self) -> int:
        """When it was completed, ns of the time of day."""
        self._present(_WC_FIELDS.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
        return self._time_ns + time.time_ns() - time.monotonic_ns()

    def read_cvlan(self) -> int:
        """An emulated NIC sees no VLAN tags."""
        self._present(_WC_FIELDS.IBV_WC_EX_WITH_CVLAN)
        return 0

    def read_flow_tag(self) -> int:
        """An emulated NIC has no flow steering."""
        self._present(_WC_FIELDS.IBV_WC_EX_WITH_FLOW_TAG)
        return 0

    def read_tm_info(self) -> WcTmInfo:
        """An emulated NIC has no tag matching."""
        self._present(_WC_FIELDS.IBV_WC_EX_WITH_TM_INFO)
        return WcTmInfo()

    def __str__(self) -> str:
        return "Extended CQ:\n" + text_lines(("Handle", self.handle), ("CQEs", self._depth))


class WC(PyverbsObject):
    """One work completion."""

    wr_id = u64()
    status = u32()
    opcode = u32()
    vendor_err = u32()
    byte_len = u32()
    qp_num = u32()
    src_qp = u32()
    imm_data = u32()
    wc_flags = u32()
    pkey_index = u16()
    slid = u16()
    sl = u8()
    dlid_path_bits = u8()

    def __init__(  # noqa: PLR0913 -- the signature of pyverbs
        self,
        wr_id: int = 0,
        status: int = 0,
        opcode: int = 0,
        vendor_err: int = 0,
        byte_len: int = 0,
        qp_num: int = 0,
        src_qp: int = 0,
        imm_data: int = 0,
        wc_flags: int = 0,
        pkey_index: int = 0,
        slid: int = 0,
        sl: int = 0,
        dlid_path_bits: int = 0,
    ) -> None:
        super().__init__()
        self.wr_id = wr_id
        self.status = status
        self.opcode = opcode
        self.vendor_err = vendor_err
        self.byte_len = byte_len
        self.qp_num = qp_num
        self.src_qp = src_qp
        self.imm_data = imm_data
        self.wc_flags = wc_flags
        self.pkey_index = pkey_index
        self.slid = slid
        self.sl = sl
        self.dlid_path_bits = dlid_path_bits

    def __str__(self) -> str:
        return text_lines(
            ("WR ID", self.wr_id),
            ("status", cqe_status_to_str(self.status)),
            ("opcode", cqe_opcode_to_str(self.opcode)),
            ("vendor error", self.vendor_err),
            ("byte length", self.byte_len),
            ("QP num", self.qp_num),
            ("source QP", self.src_qp),
            ("WC flags", cqe_flags_to_str(self.wc_flags)),
            ("pkey index", self.pkey_index),
            ("slid", self.slid),
            ("sl", self.sl),
            ("imm_data", self.imm_data),
            ("dlid path bits", self.dlid_path_bits),
        )


class PollCqAttr(PyverbsObject):
    """For extensions of ``start_poll``; there are none."""

    comp_mask = u32()


class WcTmInfo(PyverbsObject):
    """What tag matching tells of a message."""

    tag = u64()
    priv = u32()


def _imm_data(record: Any) -> int:
    """The field that is immediate data, in network order, or an invalidated key."""
    if record.wc_flags & WcFlags.WITH_INV:
        return int(record.imm)
    return socket.htonl(int(record.imm))


def _wc_of(record: Any) -> WC:
    return WC(
        wr_id=unsigned64(int(record.wr_id)),
        status=int(record.status),
        opcode=int(record.opcode),
        byte_len=int(record.byte_len),
        qp_num=int(record.qp_num),
        src_qp=int(record.src_qp),
        imm_data=_imm_data(record),
        wc_flags=int(record.wc_flags),
    )


def cqe_status_to_str(status: int) -> str:
    """A completion's status in words."""
    try:
        return WcStatus(status).name.replace("_", " ").lower()
    except ValueError:
        return f"unknown status {status}"


def cqe_opcode_to_str(opcode: int) -> str:
    """A completion's opcode in words."""
    try:
        return WcOpcode(opcode).name.replace("_", " ").lower()
    except ValueError:
        return f"unknown opcode {opcode}"


def cqe_flags_to_str(flags: int) -> str:
    """Names of a completion's flags, each followed by a space."""
    return "".join(f"{flag.name} " for flag in WcFlags if flags & flag)


def create_wc_flags_to_str(flags: int) -> str:
    """Names of the fields that a queue fills besides, each followed by a space."""
    return "".join(f"{flag.name} " for flag in _WC_FIELDS if flags & flag)
