"""One end of a connection, or a listener: what a CM ID stands for.

Events of connection management come on a thread of the device. They are put into a queue and
become news of the endpoint when the program fetches them, in its thread: only then is a queue
pair moved on and the peer told that it is.
"""

from __future__ import annotations

import errno

from emulator.cm.events import (
    CmEvent,
    ConnectRequest,
    ConnectResponse,
    Disconnected,
    Established,
    Rejected,
    ServiceRequest,
    ServiceResponse,
    TimewaitExit,
    Unreachable,
)
from emulator.cm.rendezvous import Claim, claim_any
from emulator.cm.service import CmService, service_of
from emulator.pyverbs._cm_addresses import SocketAddress, device_of, source_towards
from emulator.pyverbs._cm_news import DatagramPeer, News, Pending
from emulator.pyverbs._cm_parameters import ConnParam, resources
from emulator.pyverbs._cm_terms import (
    UDP_QKEY,
    Terms,
    connected_attributes,
    datagram_attributes,
    initial_attributes,
    path_mtu_fault,
    path_record,
    path_to,
)
from emulator.pyverbs.base import verbs_errors
from emulator.pyverbs.fabric import EventQueue, Port
from emulator.pyverbs.librdmacm_enums import rdma_cm_event_type
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError
from emulator.pyverbs.qp import ECE, QP, QPAttr
from emulator.roce.attributes import QpMask
from emulator.wire.cm import RejectReason, Rep, Req, SidrStatus
from emulator.wire.ip_cm import IpCmHeader, PortSpace, service_id
from kvlane.errors import VerbsError
from kvlane.verbs.enums import QpState

_E = rdma_cm_event_type
_PSN_BITS = 24
_PORT_BITS = 16
_DEFAULT_BACKLOG = 1024


class Endpoint:
    """Addresses, device, communication and queue pair of one CM ID."""

    def __init__(self, space: PortSpace, shared: EventQueue[Pending] | None = None) -> None:
        """``shared`` is the queue of an event channel; an ID without one has its own."""
        self.space = space
        self.is_synchronous = shared is None
        self.events: EventQueue[Pending] = EventQueue() if shared is None else shared
        self.local: SocketAddress | None = None
        self.remote: SocketAddress | None = None
        self.qp: QP | None = None
        self.ack_timeout_code: int | None = None
        self.ece = ECE()
        """What this end tells the peer."""
        self.over = False
        """The end of the connection has been told to the program."""
        self._service: CmService | None = None
        self._terms: Terms | None = None
        self._comm_id: int | None = None
        self._listener: int | None = None
        self._claim: Claim | None = None
        self._children: dict[int, Endpoint] = {}
        """Requests that the program has not fetched yet."""

    # Device and addresses

    @property
    def service(self) -> CmService:
        """Connection management of the device."""
        if self._service is None:
            raise PyverbsRDMAError("the ID is bound to no device yet", errno.EINVAL)
        return self._service

    @property
    def port(self) -> Port:
        """The port of the device that it is bound to."""
        return self.service.port

    @property
    def is_bound(self) -> bool:
        """Whether it has a device."""
        return self._service is not None

    def bind(self, local: SocketAddress, failed: str) -> None:
        """Choose the device that has an address."""
        device = device_of(local.ip)
        if device is None:
            raise PyverbsRDMAError(failed, errno.ENODEV)
        self.local = local
        self._service = service_of(device.open())

    def resolve(self, local: SocketAddress | None, remote: SocketAddress) -> News:
        """Choose the device and remember the peer; who that is, is looked up by ``connect``."""
        self.remote = remote
        if self.local is None:
            ip = source_towards(remote.ip) if local is None else local.ip
            if ip is None or ip.version != remote.ip.version or device_of(ip) is None:
                return News(_E.RDMA_CM_EVENT_ADDR_ERROR, self, status=-errno.ENODEV)
            self.bind(SocketAddress(ip, 0 if local is None else local.port), "")
        return News(_E.RDMA_CM_EVENT_ADDR_RESOLVED, self)

    @property
    def is_datagram(self) -> bool:
        """Whether it is about datagram queue pairs."""
        return self.space == PortSpace.UDP

    # Passive side

    def listen(self, backlog: int) -> None:
        """Take requests for the address."""
        failed = "Listen Failed"
        if self.local is None or self._listener is not None:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        try:
            with verbs_errors(failed):
                self._claim_address(self.local)
                with self.service.manager() as manager:
                    self._listener = manager.listen(
                        self._service_id(self.local), backlog or _DEFAULT_BACKLOG
                    )
                    self.service.listeners[self._listener] = self._on_request
        except PyverbsRDMAError as error:
            self._release()
            if isinstance(error.__cause__, VerbsError):
                raise PyverbsRDMAError(failed, errno.EADDRINUSE) from error.__cause__
            raise

    def _claim_address(self, local: SocketAddress) -> None:
        book, gid = self.service.addresses, self.port.gids[0]
        if local.port:
            self._claim = book.claim(self.space, local.ip, local.port, gid)
            return
        start = self.service.rng.getrandbits(_PORT_BITS)
        port, self._claim = claim_any(book, self.space, local.ip, gid, start)
        self.local = local._replace(port=port)

    def _on_request(self, event: CmEvent) -> None:
        """On the device's thread: a request has arrived."""
        child = Endpoint(self.space, None if self.is_synchronous else self.events)
        child._service, child._comm_id = self._service, event.comm_id
        child.local = self.local
        child.service.consumers[event.comm_id] = child._on_event
        self._children[event.comm_id] = child
        self.events.put((self, event))

    def accept(self, param: ConnParam | None) -> None:
        """Say yes, with a queue pair that is ready to receive."""
        failed = "Failed to Accept Connection"
        comm_id, service = self._require(failed), self.service
        data = b"" if param is None else param.private_data
        qpn = self._qpn(param, failed)
        if self.space == PortSpace.UDP:
            with verbs_errors(failed), service.manager() as manager:
                manager.answer_service(comm_id, qpn, UDP_QKEY, data, service.now())
            return
        terms, asked = self._agreed(failed), param or ConnParam.largest()
        self._require_path_mtu(comm_id, terms, failed)
        terms.responder_resources = resources(asked.responder_resources, terms.responder_resources)
        terms.initiator_depth = min(
            terms.initiator_depth, resources(asked.initiator_depth, terms.initiator_depth)
        )
        self._apply_option(terms)
        self._move_queue_pair(terms)
        rep = Rep(
            local_comm_id=0,
            remote_comm_id=0,
            local_qpn=qpn,
            starting_psn=terms.starting_psn,
            responder_resources=terms.responder_resources,
            initiator_depth=terms.initiator_depth,
            rnr_retry_count=asked.rnr_retry_count,
            flow_control=int(bool(asked.flow_control)),
            srq=self._srq(asked),
            local_ca_guid=self.port.device.guid,
            vendor_id=self.ece.vendor_id,
            private_data=data,
        )
        with verbs_errors(failed), service.manager() as manager:
            manager.accept(comm_id, rep, service.now(), self.ece.options)

    def _require_path_mtu(self, comm_id: int, terms: Terms, failed: str) -> None:
        """Refuse a path whose packets the port does not take (IBTA 1.7 section 12.6.7.2)."""
        fault = path_mtu_fault(terms.path_mtu, self.port.mtu)
        if not fault:
            return
        with verbs_errors(failed), self.service.manager() as manager:
            reason = RejectReason.INVALID_PATH_MTU
            manager.reject(comm_id, b"", self.service.now(), reason)
        raise PyverbsRDMAError(f"{failed}: {fault}", errno.EINVAL)

    # Active side

    def connect(self, param: ConnParam | None) -> None:
        """Ask the peer; what comes of it is told by an event."""
        failed = "Failed to Connect"
        if self.remote is None or self._comm_id is not None:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        qpn = self._qpn(param, failed)
        gid = self.service.addresses.resolve(self.space, self.remote.ip, self.remote.port)
        if gid is None:
            reason = RejectReason.INVALID_SERVICE_ID
            self.events.put((self, News(_E.RDMA_CM_EVENT_REJECTED, self, status=reason)))
            return
        with verbs_errors(failed):
            if self.space == PortSpace.UDP:
                self._ask_for_service(gid, param)
            else:
                self._request(gid, param, qpn)

    def _ask_for_service(self, gid: bytes, param: ConnParam | None) -> None:
        data = self._addresses() + (b"" if param is None else param.private_data)
        wanted = self._service_id(self.remote)
        with self.service.manager() as manager:
            comm_id = manager.resolve_service(gid, wanted, data, self.service.now())
            self._begin(comm_id, Terms(gid, 0))

    def _request(self, gid: bytes, param: ConnParam | None, qpn: int) -> None:
        asked = param or ConnParam.largest()
        terms = Terms(gid, self.service.rng.getrandbits(_PSN_BITS))
        terms.path_mtu = int(self.port.mtu)
        terms.responder_resources = resources(asked.responder_resources)
        terms.initiator_depth = resources(asked.initiator_depth)
        terms.retry_count = asked.retry_count
        self._apply_option(terms)
        req = Req(
            local_comm_id=0,
            service_id=self._service_id(self.remote),
            local_qpn=qpn,
            starting_psn=terms.starting_psn,
            primary=path_record(self.port, gid, terms.ack_timeout_code),
            local_ca_guid=self.port.device.guid,
            vendor_id=self.ece.vendor_id,
            responder_resources=terms.responder_resources,
            initiator_depth=terms.initiator_depth,
            flow_control=int(bool(asked.flow_control)),
            retry_count=terms.retry_count,
            rnr_retry_count=asked.rnr_retry_count,
            path_mtu=terms.path_mtu,
            srq=self._srq(asked),
            private_data=self._addresses() + asked.private_data,
        )
        with self.service.manager() as manager:
            self._begin(manager.connect(req, self.service.now(), self.ece.options), terms)

    def _begin(self, comm_id: int, terms: Terms) -> None:
        self._comm_id, self._terms = comm_id, terms
        self.service.consumers[comm_id] = self._on_event

    def _addresses(self) -> bytes:
        assert self.local is not None
        assert self.remote is not None
        return IpCmHeader(self.local.ip, self.remote.ip, self.local.port).emit()

    def _service_id(self, address: SocketAddress | None) -> int:
        assert address is not None
        return service_id(self.space, address.port)

    def establish(self) -> None:
        """Tell the peer that the queue pair, which the program has moved itself, is ready."""
        failed = "Failed to Complete an active connection request"
        if self.qp is not None:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        comm_id = self._require(failed)
        with verbs_errors(failed), self.service.manager() as manager:
            manager.establish(comm_id, self.service.now())

    # Both sides

    def reject(self, private_data: bytes) -> None:
        """Say no."""
        failed = "Failed to Reject Connection"
        comm_id = self._require(failed)
        with verbs_errors(failed), self.service.manager() as manager:
            manager.reject(comm_id, private_data, self.service.now())

    def disconnect(self) -> None:
        """End the connection; the queue pair goes to ERR and is flushed."""
        failed = "Failed to Disconnect"
        comm_id = self._require(failed)
        self._fail_queue_pair()
        with verbs_errors(failed), self.service.manager() as manager:
            manager.disconnect(comm_id, self.service.now())

    def remote_ece(self) -> ECE:
        """What the peer has told of enhanced connection establishment."""
        terms = self._agreed("Failed to get remote ECE")
        return ECE(terms.vendor_id, terms.options)

    def attributes(self, state: int) -> tuple[QPAttr, int]:
        """What brings a queue pair to a state, and the mask that names it."""
        failed = "Failed to get QP attributes"
        if state == QpState.INIT:
            return initial_attributes(self.space)
        if state not in (QpState.RTR, QpState.RTS):
            raise PyverbsRDMAError(failed, errno.EINVAL)
        if self.space == PortSpace.UDP:
            return datagram_attributes(QpState(state))
        terms = self._agreed(failed)
        self._apply_option(terms)
        return connected_attributes(self.port, terms, QpState(state))

    def adopt(self, qp: QP) -> None:
        """Take a new queue pair, and bring it on as far as it goes without a peer."""
        states = [QpState.INIT]
        if self.space == PortSpace.UDP:
            states += [QpState.RTR, QpState.RTS]
        for state in states:
            qp.modify(*self.attributes(state))
        self.qp = qp

    def close(self) -> None:
        """Leave the communication wherever it stands, or stop listening."""
        self._release()
        service = self._service
        # A child that has been forked must leave its parent's communications alone.
        if service is not None and service.port.is_open:
            with service.manager() as manager:
                if self._comm_id is not None:
                    service.consumers.pop(self._comm_id, None)
                    manager.abandon(self._comm_id, service.now())
                if self._listener is not None:
                    del service.listeners[self._listener]
                    manager.unlisten(self._listener, service.now())
        self._comm_id = self._listener = None
        unseen, self._children = self._children, {}
        for child in unseen.values():
            child.close()
        if self.is_synchronous:
            self.events.close()

    def _release(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release()

    # Events

    def _on_event(self, event: CmEvent) -> None:
        """On the device's thread: something has happened."""
        self.events.put((self, event))

    def news(self, event: CmEvent | News) -> News:
        """What an event comes to, in the program's thread."""
        if isinstance(event, News):
            return event
        if isinstance(event, ConnectRequest | ServiceRequest):
            return self._children.pop(event.comm_id)._requested(event)
        if isinstance(event, ConnectResponse):
            return self._answered(event)
        if isinstance(event, ServiceResponse):
            return self._served(event)
        if isinstance(event, Established):
            return News(_E.RDMA_CM_EVENT_ESTABLISHED, self)
        if isinstance(event, TimewaitExit):
            return News(_E.RDMA_CM_EVENT_TIMEWAIT_EXIT, self)
        return self._ended(event)

    def _requested(self, event: ConnectRequest | ServiceRequest) -> News:
        """This is the new endpoint of a request."""
        if isinstance(event, ConnectRequest):
            psn = self.service.rng.getrandbits(_PSN_BITS)
            self._terms = Terms.of_request(event.gid, event.req, event.options, psn)
        data = event.req.private_data[IpCmHeader.NBYTES :]
        return News(_E.RDMA_CM_EVENT_CONNECT_REQUEST, self, data)

    def _answered(self, event: ConnectResponse) -> News:
        terms = self._agreed("Failed to Connect")
        terms.take_reply(event.rep, event.options)
        data = event.rep.private_data
        if self.qp is None:
            return News(_E.RDMA_CM_EVENT_CONNECT_RESPONSE, self, data)
        try:
            self._move_queue_pair(terms)
            with verbs_errors("Failed to Connect"), self.service.manager() as manager:
                manager.establish(event.comm_id, self.service.now())
        except PyverbsRDMAError as error:
            with self.service.manager() as manager:
                manager.abandon(event.comm_id, self.service.now())
            return News(_E.RDMA_CM_EVENT_CONNECT_ERROR, self, status=-error.error_code)
        return News(_E.RDMA_CM_EVENT_ESTABLISHED, self, data)

    def _served(self, event: ServiceResponse) -> News:
        rep = event.rep
        if rep.status != SidrStatus.VALID:
            return News(_E.RDMA_CM_EVENT_UNREACHABLE, self, rep.private_data, status=rep.status)
        gid = self._agreed("Failed to Connect").gid
        peer = DatagramPeer(rep.qpn, rep.qkey, path_to(self.port, gid))
        return News(_E.RDMA_CM_EVENT_ESTABLISHED, self, rep.private_data, peer=peer)

    def _ended(self, event: Rejected | Unreachable | Disconnected) -> News:
        if isinstance(event, Disconnected):
            self.over = True
            return News(_E.RDMA_CM_EVENT_DISCONNECTED, self)
        self._fail_queue_pair()
        if isinstance(event, Unreachable):
            return News(_E.RDMA_CM_EVENT_UNREACHABLE, self, status=-errno.ETIMEDOUT)
        return News(_E.RDMA_CM_EVENT_REJECTED, self, event.private_data, status=event.reason)

    # Queue pair

    def _move_queue_pair(self, terms: Terms) -> None:
        """To RTS; a queue pair of the program's own is moved by the program."""
        if self.qp is not None:
            for state in (QpState.RTR, QpState.RTS):
                self.qp.modify(*connected_attributes(self.port, terms, state))

    def _fail_queue_pair(self) -> None:
        if self.qp is not None and self.space == PortSpace.TCP:
            attr, _ = initial_attributes(self.space)
            attr.qp_state = QpState.ERR
            self.qp.modify(attr, QpMask.STATE)

    def _apply_option(self, terms: Terms) -> None:
        if self.ack_timeout_code is not None:
            terms.ack_timeout_code = self.ack_timeout_code

    def _qpn(self, param: ConnParam | None, failed: str) -> int:
        if self.qp is not None:
            return self.qp.qp_num
        if param is None:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        return param.qpn

    def _srq(self, param: ConnParam) -> int:
        return int(self.qp.srq is not None if self.qp is not None else bool(param.srq))

    def _agreed(self, failed: str) -> Terms:
        if self._terms is None:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        return self._terms

    def _require(self, failed: str) -> int:
        if self._comm_id is None:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        return self._comm_id
