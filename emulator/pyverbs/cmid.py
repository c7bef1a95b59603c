"""Connection management by IP address and port.

An ID works synchronously when it was made from an ``AddrInfo``: its calls return when the
peer has answered. It works asynchronously when it was made with an event channel: its calls
return at once, and a ``CMEvent`` tells what became of them.

Of the machine, a program needs the address of a device: it is the host part of the option
``listen``, 127.0.0.1 by default, and several devices on one address serve it in their order.
Programs that look for it by ``rdma link show -j`` and ``ip -j addr show IFNAME`` need
programs of these names that know the emulated devices.
"""

from __future__ import annotations

import errno
from typing import ClassVar

from emulator.pyverbs._cm_addresses import AddrInfo
from emulator.pyverbs._cm_addresses import port_space as space_of
from emulator.pyverbs._cm_endpoint import Endpoint
from emulator.pyverbs._cm_news import CMEvent, CMEventChannel, News
from emulator.pyverbs._cm_parameters import ConnParam, JoinMCAttrEx, UDParam
from emulator.pyverbs._cm_terms import UDP_QKEY
from emulator.pyverbs.addr import AH
from emulator.pyverbs.base import Dependents, PyverbsCM, not_supported
from emulator.pyverbs.cq import CQ, WC, CompChannel
from emulator.pyverbs.device import Context
from emulator.pyverbs.fabric import Port
from emulator.pyverbs.librdmacm_enums import (
    RDMA_OPTION_ID,
    RDMA_OPTION_ID_ACK_TIMEOUT,
    rdma_cm_event_type,
    rdma_port_space,
)
from emulator.pyverbs.mr import MR
from emulator.pyverbs.pd import PD
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from emulator.pyverbs.qp import ECE, QP, QPAttr, QPCap, QPInitAttr
from emulator.pyverbs.wr import SGE, RecvWR, SendWR
from kvlane.verbs.enums import AccessFlags, SendFlags, WrOpcode

__all__ = [
    "CMID",
    "AddrInfo",
    "CMEvent",
    "CMEventChannel",
    "ConnParam",
    "JoinMCAttrEx",
    "UDParam",
]

_E = rdma_cm_event_type
_TIMEOUT_MS = 2000
_MAX_TIMEOUT_CODE = 31
_ERRNO_OF = {
    _E.RDMA_CM_EVENT_REJECTED: errno.ECONNREFUSED,
    _E.RDMA_CM_EVENT_UNREACHABLE: errno.ETIMEDOUT,
    _E.RDMA_CM_EVENT_CONNECT_ERROR: errno.ECONNABORTED,
    _E.RDMA_CM_EVENT_ADDR_ERROR: errno.ENODEV,
}


class CMID(PyverbsCM):
    """One end of a connection, or a listener, with its queue pair."""

    _kind: ClassVar[str] = "cmid"

    def __init__(
        self,
        creator: AddrInfo | CMEventChannel | CMEvent | None = None,
        qp_init_attr: QPInitAttr | None = None,
        pd: PD | None = None,
        port_space: int = rdma_port_space.RDMA_PS_TCP,
        listen_id: CMID | None = None,
    ) -> None:
        """Synchronous of addresses, asynchronous of a channel, or of an event for a request.

        ``qp_init_attr`` and ``pd`` are for synchronous IDs: a queue pair is created at once,
        or by a listener for each request.
        """
        super().__init__()
        self.ctx: Context | None = None
        self.pd: PD | None = pd
        self.event_channel: CMEventChannel | None = None
        self.endpoint: Endpoint | None = None
        self._dependents = Dependents("mr", "cq", "comp_channel")
        self._init_attr = qp_init_attr
        self._queues: dict[str, tuple[CQ, CompChannel]] = {}
        if creator is not None:
            self._create(creator, port_space, listen_id)

    def _create(
        self, creator: AddrInfo | CMEventChannel | CMEvent, space: int, listen_id: CMID | None
    ) -> None:
        if isinstance(creator, AddrInfo):
            self.endpoint = Endpoint(space_of(creator.port_space))
            self._create_synchronous(creator)
        elif isinstance(creator, CMEventChannel):
            self.event_channel = creator
            self.endpoint = Endpoint(space_of(space), creator.require_open())
        elif isinstance(creator, CMEvent):
            if listen_id is None:
                raise PyverbsUserError("listen ID not provided")
            self.endpoint = creator.news.endpoint
            self.event_channel = listen_id.event_channel
            self.ctx, self.pd = listen_id.ctx, listen_id.pd
        else:
            raise PyverbsRDMAError(f"Cannot create CM ID from {type(creator)}", errno.EINVAL)

    def _create_synchronous(self, info: AddrInfo) -> None:
        failed = "Failed to create CM ID"
        if info.is_passive:
            if info.src is None:
                raise PyverbsRDMAError(failed, errno.EINVAL)
            self._id.bind(info.src, failed)
            return
        self.resolve_addr(info)
        self.resolve_route()
        if self._init_attr is not None:
            self.create_qp(self._init_attr)

    @property
    def _id(self) -> Endpoint:
        if self.endpoint is None:
            raise PyverbsUserError("the CM ID is closed")
        return self.endpoint

    def add_ref(self, obj: PyverbsCM) -> None:
        """Close an object before this."""
        self._dependents.add(obj)

    # What it is made of

    @property
    def port(self) -> Port:
        """The port of the device that it is bound to."""
        return self._id.port

    @property
    def pd_number(self) -> int:
        """The protection domain that all IDs of the device share."""
        return self._id.service.pd_number

    @property
    def dev_name(self) -> str:
        """Name of the device."""
        return self.port.device.name

    @property
    def port_num(self) -> int:
        """Number of the port; 0 when it is bound to none."""
        return 1 if self._id.is_bound else 0

    @property
    def context(self) -> Context | None:
        """The device, from the moment that it is bound to one."""
        return self.ctx

    @property
    def qpn(self) -> int | None:
        """Number of the queue pair that it has created."""
        qp = self._id.qp
        return None if qp is None else qp.qp_num

    def _open_device(self) -> None:
        if self.ctx is None:
            self.ctx = Context(cmid=self)
        if self.pd is None:
            self.pd = PD(self)

    # Addresses

    def bind_addr(self, lai: AddrInfo) -> None:
        """Choose the device that has the source address."""
        failed = "Failed to Bind ID"
        if lai.src is None:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        self._id.bind(lai.src, failed)
        self._open_device()

    def resolve_addr(self, rai: AddrInfo, timeout_ms: int = _TIMEOUT_MS) -> None:  # noqa: ARG002
        """Choose the device towards the destination; nothing here takes time."""
        failed = "Failed to Resolve Address"
        if rai.dst is None:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        self._tell(self._id.resolve(rai.src, rai.dst), failed)

    def resolve_route(self, timeout_ms: int = _TIMEOUT_MS) -> None:  # noqa: ARG002
        """Find the way to the destination; RoCE has none to look for."""
        failed = "Failed to Resolve Route"
        if self._id.remote is None or not self._id.is_bound:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        self._open_device()
        self._tell(News(_E.RDMA_CM_EVENT_ROUTE_RESOLVED, self._id), failed)

    def _tell(self, news: News, failed: str) -> None:
        """A call has done all there was to do."""
        if not self._id.is_synchronous:
            self._id.events.put((self._id, news))
        elif news.status:
            raise PyverbsRDMAError(failed, -news.status)

    # Connections

    def listen(self, backlog: int = 0) -> None:
        """Take requests; ``backlog`` may wait to be fetched, 0 for a good many."""
        self._id.listen(backlog)

    def get_request(self) -> CMID:
        """Wait for a request; a synchronous listener's way to get the ID of it."""
        failed = "Failed to get request, no connection established"
        if not self._id.is_synchronous:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        news = self._wait(failed)
        if news.event_type != _E.RDMA_CM_EVENT_CONNECT_REQUEST:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        child = CMID(pd=self.pd)
        child.endpoint = news.endpoint
        child._open_device()
        self.ctx, self.pd = child.ctx, child.pd
        if self._init_attr is not None:
            child.create_qp(self._init_attr)
        return child

    def connect(self, param: ConnParam | None = None) -> None:
        """Ask the destination for a connection, or for its datagram queue pair."""
        self._id.connect(param)
        self._complete("Failed to Connect")

    def accept(self, param: ConnParam | None = None) -> None:
        """Say yes to a request."""
        self._id.accept(param)
        if not self._id.is_datagram:
            self._complete("Failed to Accept Connection")

    def reject(self, private_data: bytes | None = None) -> None:
        """Say no to a request."""
        self._id.reject(private_data or b"")

    def establish(self) -> None:
        """Complete a connection whose queue pair the program has created and moved itself."""
        self._id.establish()

    def disconnect(self) -> None:
        """End the connection."""
        endpoint = self._id
        endpoint.disconnect()
        while endpoint.is_synchronous and not endpoint.over:
            self._wait("Failed to Disconnect")

    def _complete(self, failed: str) -> None:
        """A synchronous call returns when the peer has answered."""
        if self._id.is_synchronous:
            news = self._wait(failed)
            if news.event_type in _ERRNO_OF:
                raise PyverbsRDMAError(failed, _ERRNO_OF[news.event_type])

    def _wait(self, failed: str) -> News:
        try:
            endpoint, event = self._id.events.get()
        except BlockingIOError as error:
            raise PyverbsRDMAError(failed, errno.EAGAIN) from error
        return endpoint.news(event)

    # Options

    def set_option(self, level: int, optname: int, optval: int, optlen: int) -> None:
        """Set the ACK timeout code of the queue pair, the only option there is."""
        if optname != RDMA_OPTION_ID_ACK_TIMEOUT:
            raise PyverbsUserError("only RDMA_OPTION_ID_ACK_TIMEOUT can be set")
        if level != RDMA_OPTION_ID or optlen != 1 or not 0 <= optval <= _MAX_TIMEOUT_CODE:
            raise PyverbsRDMAError("Failed to set option", errno.EINVAL)
        self._id.ack_timeout_code = optval

    def set_local_ece(self, ece: ECE) -> None:
        """What to tell the peer of enhanced connection establishment."""
        self._id.ece = ECE(ece.vendor_id, ece.options)

    def get_remote_ece(self) -> ECE:
        """What the peer has told of it."""
        return self._id.remote_ece()

    # Multicast

    def join_multicast(
        self,
        addr: AddrInfo | None = None,
        mc_attr: JoinMCAttrEx | None = None,
        context: int = 0,  # noqa: ARG002 -- pyverbs'
    ) -> None:
        """Emulated devices have no multicast."""
        if addr is None and mc_attr is None:
            raise PyverbsUserError("an AddrInfo or a JoinMCAttrEx names the group")
        not_supported("Failed to Join multicast")

    def leave_multicast(self, addr: AddrInfo) -> None:  # noqa: ARG002 -- pyverbs'
        """Emulated devices have no multicast."""
        not_supported("Failed to leave multicast")

    # Queue pair

    def create_qp(self, qp_init: QPInitAttr) -> None:
        """Create the queue pair, and completion queues unless ``qp_init`` or the ID has them."""
        failed = "Failed to Create QP"
        endpoint = self._id
        if endpoint.qp is not None or self.pd is None:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        cap: QPCap = qp_init.cap
        send_cq = qp_init.send_cq or self._new_cq("send", cap.max_send_wr)
        recv_cq = qp_init.recv_cq or self._new_cq("recv", cap.max_recv_wr)
        attr = QPInitAttr(
            qp_init.qp_type,
            qp_init.qp_context,
            send_cq,
            recv_cq,
            qp_init.srq,
            cap,
            qp_init.sq_sig_all,
        )
        endpoint.adopt(QP(self.pd, attr))

    def _new_cq(self, name: str, depth: int) -> CQ:
        assert self.ctx is not None
        channel = CompChannel(self.ctx)
        cq = CQ(self.ctx, max(1, depth), None, channel, 0)
        self._queues[name] = cq, channel
        self.add_ref(cq)
        self.add_ref(channel)
        return cq

    def query_qp(self, attr_mask: int) -> tuple[QPAttr, QPInitAttr]:
        """Attributes of the queue pair."""
        return self._queue_pair("Failed to query QP").query(attr_mask)

    def init_qp_attr(self, qp_state: int) -> tuple[QPAttr, int]:
        """What brings a queue pair of the program's own to a state, and the mask that names it."""
        return self._id.attributes(qp_state)

    def _queue_pair(self, failed: str) -> QP:
        qp = self._id.qp
        if qp is None:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        return qp

    # Memory

    def reg_msgs(self, size: int) -> MR:
        """Memory for messages."""
        return MR(self, size, AccessFlags.LOCAL_WRITE)

    def reg_read(self, size: int = 0) -> MR:
        """Memory that the peer may read."""
        return MR(self, size, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ)

    def reg_write(self, size: int = 0) -> MR:
        """Memory that the peer may write."""
        return MR(self, size, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE)

    # Traffic

    def post_recv(self, mr: MR, length: int | None = None) -> None:
        """Post a receive into the first ``length`` bytes of a region, all by default."""
        qp = self._queue_pair("Failed to Post Receive")
        qp.post_recv(RecvWR(num_sge=1, sg=[_element(mr, length)]))

    def post_send(self, mr: MR, flags: int = SendFlags.SIGNALED, length: int | None = None) -> None:
        """Send the first ``length`` bytes of a region, all by default."""
        self._post(WrOpcode.SEND, mr, flags, length)

    def post_ud_send(
        self,
        mr: MR,
        ah: AH,
        rqpn: int = 0,
        flags: int = SendFlags.SIGNALED,
        length: int | None = None,
    ) -> None:
        """The same to a datagram queue pair of connection management."""
        self._post(WrOpcode.SEND, mr, flags, length, datagram=(ah, rqpn))

    def post_read(self, mr: MR, length: int, remote_addr: int, rkey: int, flags: int = 0) -> None:
        """READ from the peer into a region."""
        self._post(WrOpcode.RDMA_READ, mr, flags, length, remote=(rkey, remote_addr))

    def post_write(self, mr: MR, length: int, remote_addr: int, rkey: int, flags: int = 0) -> None:
        """WRITE from a region to the peer."""
        self._post(WrOpcode.RDMA_WRITE, mr, flags, length, remote=(rkey, remote_addr))

    def _post(
        self,
        opcode: WrOpcode,
        mr: MR,
        flags: int,
        length: int | None,
        *,
        remote: tuple[int, int] | None = None,
        datagram: tuple[AH, int] | None = None,
    ) -> None:
        qp = self._queue_pair("Failed to Post Send")
        wr = SendWR(opcode=opcode, num_sge=1, sg=[_element(mr, length)], send_flags=flags)
        if remote is not None:
            wr.set_wr_rdma(*remote)
        if datagram is not None:
            wr.set_wr_ud(*datagram, UDP_QKEY)
        qp.post_send(wr)

    def get_recv_comp(self) -> WC | None:
        """Wait for the completion of a receive."""
        return self._completion("recv", "Failed to retrieve receive completion")

    def get_send_comp(self) -> WC | None:
        """Wait for the completion of a send work request."""
        return self._completion("send", "Failed to retrieve send completion")

    def _completion(self, name: str, failed: str) -> WC | None:
        if name not in self._queues:
            raise PyverbsRDMAError(f"{failed}: the program has its own CQ", errno.EINVAL)
        cq, channel = self._queues[name]
        while True:
            for asleep in (True, False):
                count, completions = cq.poll(1)
                if count:
                    return completions[0]
                if asleep:
                    # Armed between two looks, so that nothing is missed in between.
                    cq.req_notify()
            channel.get_cq_event(cq)
            cq.ack_events(1)

    # The end

    def close(self) -> None:
        """Close the queue pair and what belongs to it, and leave the connection."""
        endpoint, self.endpoint = self.endpoint, None
        if endpoint is None:
            return
        if endpoint.qp is not None:
            endpoint.qp.close()
        self._dependents.close()
        self._queues.clear()
        endpoint.close()
        self.ctx = self.pd = None

    def __del__(self) -> None:
        endpoint = getattr(self, "endpoint", None)
        if endpoint is not None and endpoint.is_bound and endpoint.service.is_held_here():
            endpoint.service.bury(self)
        else:
            super().__del__()


def _element(mr: MR, length: int | None) -> SGE:
    return SGE(mr.buf, length or mr.length, mr.lkey)
