"""``ConnectionManager``: all communications of a port, sans-IO.

It takes MADs, calls and the time, and gives MADs to send and events. It reads no clock and
draws randomness only from the generator it is given. Calls are not thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from emulator.cm.communication import KEPT, NEVER, Communication
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
from emulator.cm.registry import Registry
from emulator.cm.states import CALLS, RULES, TIMER_OF, CmInput, CmState, Send, Tell, Timer
from emulator.wire.cm import (
    AnsweredMessage,
    CmMessage,
    Drep,
    Dreq,
    Mra,
    Rej,
    RejectReason,
    Rep,
    Req,
    Rtu,
    SidrRep,
    SidrReq,
    SidrStatus,
    TransportService,
    emit_cm,
    parse_cm,
    timeout_ns,
)
from emulator.wire.errors import WireError
from kvlane.errors import VerbsError
from kvlane.seams import Rng

_LINGER_INTERVALS = 4
"""Intervals of the peer's repetitions that must all get lost before one finds nobody."""
_MAX_TIMEOUT_CODE = 24
"""69 s: what a peer may make one wait for, however long it says."""
_TRANSACTION_SHIFT = 32

_INPUT_OF: Mapping[type[CmMessage], CmInput] = {
    Req: CmInput.REQ,
    Rep: CmInput.REP,
    Mra: CmInput.MRA,
    Rej: CmInput.REJ,
    Rtu: CmInput.RTU,
    Dreq: CmInput.DREQ,
    Drep: CmInput.DREP,
    SidrReq: CmInput.SIDR_REQ,
    SidrRep: CmInput.SIDR_REP,
}
_WAITING_FOR_CONSUMER = frozenset(
    {CmState.REQ_RECEIVED, CmState.MRA_REQ_SENT, CmState.SIDR_REQ_RECEIVED}
)


@dataclass(frozen=True, slots=True)
class CmOptions:
    """Timeouts and sizes of a connection manager. Codes stand for 4.096 us x 2^code."""

    response_timeout_code: int = 16
    """In which a peer answers; 16 is 268 ms."""
    max_retries: int = 15
    """Repetitions of a message before its peer counts as unreachable, at most 15."""
    service_timeout_code: int = 20
    """In which the consumer answers, as a MRA promises; 20 is 4.3 s.

    A peer waits so long for each repetition, which gives a consumer more than a minute. But
    a RTU or REJ that is lost after a MRA is missed as late as that.
    """
    max_communications: int = 4096


@dataclass(frozen=True, slots=True)
class OutgoingMad:
    """A MAD for queue pair 1 of a port."""

    gid: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class _Listener:
    service_id: int
    backlog: int


class ConnectionManager:
    """Communications by their ids, and listeners by theirs."""

    def __init__(self, rng: Rng, options: CmOptions = CmOptions()) -> None:
        self._options = options
        self._registry = Registry(rng, options.max_communications)
        self._listeners: dict[int, _Listener] = {}
        self._services: dict[int, int] = {}
        """Service id -> listener."""
        self._next_listener = 1
        self._next_transaction = rng.getrandbits(31) << _TRANSACTION_SHIFT
        self._mads: list[OutgoingMad] = []
        self._events: list[CmEvent] = []
        self.malformed = 0
        """MADs that were none of connection management."""

    # What has happened

    def take_mads(self) -> list[OutgoingMad]:
        """MADs to send, in order."""
        mads, self._mads = self._mads, []
        return mads

    def take_events(self) -> list[CmEvent]:
        """Events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def __len__(self) -> int:
        """Communications in memory, those that linger included."""
        return len(self._registry)

    def state(self, comm_id: int) -> CmState:
        """Where a communication stands; CLOSED when it is forgotten."""
        found = self._registry.get(comm_id)
        return CmState.CLOSED if found is None else found.state

    def owes_messages(self) -> bool:
        """Whether a peer would wait in vain if everything ended now: a DREQ is unanswered."""
        return any(one.state == CmState.DREQ_SENT for one in self._registry)

    # Listening

    def listen(self, service_id: int, backlog: int) -> int:
        """Take requests for a service; return the listener's id.

        At most ``backlog`` requests wait for the consumer; more are refused.
        """
        if service_id in self._services:
            raise VerbsError(f"somebody listens for service {service_id:#x} already")
        listener = self._next_listener
        self._next_listener += 1
        self._listeners[listener] = _Listener(service_id, backlog)
        self._services[service_id] = listener
        return listener

    def unlisten(self, listener: int, now: int) -> None:
        """Stop; requests that nobody has answered are refused."""
        self._services.pop(self._listeners.pop(listener).service_id)
        for waiting in self._waiting(listener):
            self.abandon(waiting.comm_id, now)

    def _waiting(self, listener: int) -> list[Communication]:
        return [
            one
            for one in self._registry
            if one.listener == listener and one.state in _WAITING_FOR_CONSUMER
        ]

    # Calls of the active side

    def connect(self, req: Req, now: int, options: int = 0) -> int:
        """Send a REQ to ``req.primary.remote_gid``; return the new communication's id.

        Ids and timeouts of the message are filled in here. ``options`` go with its vendor id.
        """
        code = self._options.response_timeout_code
        message = replace(
            req,
            local_comm_id=self._registry.new_id(),
            remote_response_timeout=code,
            local_response_timeout=code,
            max_cm_retries=self._options.max_retries,
        )
        gid = req.primary.remote_gid
        new = self._new(message.local_comm_id, gid, CmState.REQ_SENT, self._new_transaction())
        new.local_ca_guid, new.options = req.local_ca_guid, options
        return self._begin(new, message, now)

    def establish(self, comm_id: int, now: int) -> None:
        """Send the RTU: the queue pair is in RTS."""
        found = self._require(comm_id)
        self._apply(found, CmInput.ESTABLISH, now, Rtu(comm_id, found.remote_comm_id))

    def resolve_service(self, gid: bytes, service_id: int, private_data: bytes, now: int) -> int:
        """Ask a port for the queue pair of a datagram service; return an id for the answer."""
        message = SidrReq(self._registry.new_id(), service_id, private_data=private_data)
        new = self._new(message.request_id, gid, CmState.SIDR_REQ_SENT, self._new_transaction())
        return self._begin(new, message, now)

    def _begin(self, new: Communication, message: CmMessage, now: int) -> int:
        self._registry.add(new)
        self._send(new, Send.GIVEN, message)
        self._arm(new, now, None)
        return new.comm_id

    # Calls of the passive side

    def accept(self, comm_id: int, rep: Rep, now: int, options: int = 0) -> None:
        """Send a REP; its ids are filled in here."""
        found = self._require(comm_id)
        found.local_ca_guid, found.options = rep.local_ca_guid, options
        message = replace(rep, local_comm_id=comm_id, remote_comm_id=found.remote_comm_id)
        self._apply(found, CmInput.ACCEPT, now, message)

    def answer_service(
        self, comm_id: int, qpn: int, qkey: int, private_data: bytes, now: int
    ) -> None:
        """Send a SIDR_REP that names a queue pair."""
        found = self._require(comm_id)
        ids = (found.remote_comm_id, found.service_id)
        message = SidrRep(*ids, SidrStatus.VALID, qpn=qpn, qkey=qkey, private_data=private_data)
        self._apply(found, CmInput.ACCEPT, now, message)

    # Calls of both

    def reject(
        self,
        comm_id: int,
        private_data: bytes,
        now: int,
        reason: int = RejectReason.CONSUMER_REJECT,
    ) -> None:
        """Refuse a request, or a response, or a question for a datagram service."""
        found = self._require(comm_id)
        message: CmMessage = found.rejection(reason, private_data)
        if found.state == CmState.SIDR_REQ_RECEIVED:
            message = found.service_refusal(private_data)
        self._apply(found, CmInput.REJECT, now, message)

    def disconnect(self, comm_id: int, now: int) -> None:
        """End a connection; one that has ended already, or is ending, stays as it is."""
        found = self._registry.get(comm_id)
        if found is not None:
            self._apply(found, CmInput.DISCONNECT, now)

    def abandon(self, comm_id: int, now: int) -> None:
        """Close it wherever it stands; no further event is told of it."""
        found = self._registry.get(comm_id)
        if found is not None:
            found.abandoned = True
            self._apply(found, CmInput.ABANDON, now)

    def _require(self, comm_id: int) -> Communication:
        found = self._registry.get(comm_id)
        if found is None:
            raise VerbsError(f"there is no communication {comm_id:#x} any more")
        return found

    # Time

    def next_deadline(self) -> int:
        """When ``advance`` must be called at the latest, ns; ``NEVER`` when nothing waits."""
        return min((one.deadline for one in self._registry), default=NEVER)

    def advance(self, now: int) -> None:
        """Do what is due."""
        for one in self._registry:
            if one.deadline > now:
                continue
            if TIMER_OF[one.state] == Timer.RETRY and one.retries_left > 0:
                one.retries_left -= 1
                self._apply(one, CmInput.TIMEOUT, now)
            else:
                self._apply(one, CmInput.EXPIRED, now)

    # Messages

    def receive(self, gid: bytes, mad: bytes, now: int) -> None:
        """Take a MAD from a port. Nothing that a peer sends raises."""
        try:
            header, message = parse_cm(mad)
        except WireError:
            self.malformed += 1
            return
        transaction, options = header.transaction_id, header.attribute_modifier
        found = self._find(gid, message)
        if found is not None:
            found.transaction_id = transaction
            _learn(found, message)
            self._apply(found, _INPUT_OF[type(message)], now, message, options)
        elif isinstance(message, Req):
            self._on_request(gid, message, transaction, options, now)
        elif isinstance(message, SidrReq):
            self._on_service_request(gid, message, transaction)
        else:
            self._answer_stranger(gid, message, transaction)

    def _find(self, gid: bytes, message: CmMessage) -> Communication | None:
        """The communication that a message belongs to, if its sender is that peer."""
        if isinstance(message, Req):
            return self._registry.of_request((Req, gid, message.local_comm_id))
        if isinstance(message, SidrReq):
            return self._registry.of_request((SidrReq, gid, message.request_id))
        if isinstance(message, SidrRep):
            asked = self._registry.get(message.request_id)
            return asked if asked is not None and asked.gid == gid else None
        if isinstance(message, Rej) and message.remote_comm_id == 0:
            # The active side gives up, and has never heard which id we have.
            return self._registry.of_request((Req, gid, message.local_comm_id))
        found = self._registry.get(message.remote_comm_id)
        if found is None or found.gid != gid:
            return None
        # A REJ from somebody who keeps no communication has no id of its own.
        is_peer = message.local_comm_id in (0, found.remote_comm_id)
        return found if is_peer or found.remote_comm_id == 0 else None

    def _on_request(self, gid: bytes, req: Req, transaction: int, options: int, now: int) -> None:
        listener = self._services.get(req.service_id)
        if listener is None:
            self._refuse(gid, req, transaction, RejectReason.INVALID_SERVICE_ID)
        elif req.transport not in (TransportService.RC, TransportService.UC):
            self._refuse(gid, req, transaction, RejectReason.INVALID_TRANSPORT_TYPE)
        elif self._end_stale(gid, req.local_qpn, now):
            self._refuse(gid, req, transaction, RejectReason.STALE_CONNECTION)
        elif not self._has_room(listener):
            self._refuse(gid, req, transaction, RejectReason.NO_RESOURCES)
        else:
            new = self._new(self._registry.new_id(), gid, CmState.REQ_RECEIVED, transaction)
            new.remote_comm_id, new.remote_qpn = req.local_comm_id, req.local_qpn
            new.max_retries = req.max_cm_retries
            new.retry_ns = _interval_ns(req.local_response_timeout)
            new.linger_ns = _LINGER_INTERVALS * _interval_ns(req.remote_response_timeout)
            self._enlist(new, Req, listener)
            self._events.append(ConnectRequest(new.comm_id, listener, gid, req, options))

    def _refuse(self, gid: bytes, req: Req, transaction: int, reason: RejectReason) -> None:
        """Without a trace in memory: the same request again gets the same answer."""
        rej = Rej(0, req.local_comm_id, AnsweredMessage.REQ, reason)
        self._post(gid, transaction, rej)

    def _end_stale(self, gid: bytes, qpn: int, now: int) -> bool:
        """End connections of a queue pair that asks anew: the peer has forgotten them.

        IBTA 1.7 section 12.9.8.3.1: the new request is refused, and may come again.
        """
        stale = [
            one
            for one in self._registry
            if (one.gid, one.remote_qpn, one.state) == (gid, qpn, CmState.ESTABLISHED)
        ]
        for one in stale:
            self._apply(one, CmInput.DISCONNECT, now)
        return bool(stale)

    def _on_service_request(self, gid: bytes, req: SidrReq, transaction: int) -> None:
        listener = self._services.get(req.service_id)
        if listener is None or not self._has_room(listener):
            known = listener is not None
            status = SidrStatus.NO_QP if known else SidrStatus.SERVICE_ID_NOT_SUPPORTED
            self._post(gid, transaction, SidrRep(req.request_id, req.service_id, status))
            return
        new = self._new(self._registry.new_id(), gid, CmState.SIDR_REQ_RECEIVED, transaction)
        new.remote_comm_id, new.service_id = req.request_id, req.service_id
        self._enlist(new, SidrReq, listener)
        self._events.append(ServiceRequest(new.comm_id, listener, gid, req))

    def _has_room(self, listener: int) -> bool:
        backlog = self._listeners[listener].backlog
        return len(self._waiting(listener)) < backlog and self._registry.has_room()

    def _enlist(self, new: Communication, kind: type[CmMessage], listener: int) -> None:
        """Keep it so that repetitions of its request find it."""
        new.listener = listener
        new.request_key = (kind, new.gid, new.remote_comm_id)
        self._registry.add(new)

    def _answer_stranger(self, gid: bytes, message: CmMessage, transaction: int) -> None:
        """Tell a peer that what it believes in does not exist (any more).

        Neither a REJ nor a DREP is ever answered, so that two managers cannot keep each
        other busy.
        """
        if isinstance(message, Dreq):
            drep = Drep(message.remote_comm_id, message.local_comm_id)
            self._post(gid, transaction, drep)
        elif isinstance(message, Rep | Rtu):
            about = AnsweredMessage.REP if isinstance(message, Rep) else AnsweredMessage.OTHER
            ids = (message.remote_comm_id, message.local_comm_id)
            self._post(gid, transaction, Rej(*ids, about, RejectReason.INVALID_COMM_ID))

    # The machine

    def _apply(
        self,
        one: Communication,
        what: CmInput,
        now: int,
        message: CmMessage | None = None,
        options: int = 0,
    ) -> None:
        """Do what the table says. ``message`` is the one received, or the one to be sent."""
        rule = RULES[one.state].get(what)
        if rule is None:
            if what in CALLS:
                raise VerbsError(f"{what.name} is not possible in {one.state.name}")
            return
        to_send = message if rule.send == Send.GIVEN else one.written(rule.send)
        if to_send is not None:
            self._send(one, rule.send, to_send)
        moved = rule.to != one.state
        one.state = rule.to
        if moved or to_send is not None or isinstance(message, Mra):
            self._arm(one, now, message)
        if not one.abandoned:
            self._tell(one, rule.tell, message, options)
        if one.state == CmState.CLOSED:
            self._registry.remove(one)

    def _send(self, one: Communication, send: Send, message: CmMessage) -> None:
        if send in KEPT:
            one.kept = message
            one.retries_left = one.max_retries
        if send == Send.DREQ:
            one.transaction_id = self._new_transaction()
        self._post(one.gid, one.transaction_id, message, one.options)

    def _post(self, gid: bytes, transaction: int, message: CmMessage, options: int = 0) -> None:
        modifier = options if isinstance(message, Req | Rep) else 0
        self._mads.append(OutgoingMad(gid, emit_cm(message, transaction, modifier)))

    def _arm(self, one: Communication, now: int, message: CmMessage | None) -> None:
        timer = TIMER_OF[one.state]
        if timer == Timer.NONE:
            one.deadline = NEVER
        elif timer == Timer.LINGER:
            one.deadline = now + one.linger_ns
        else:
            extra = _interval_ns(message.service_timeout) if isinstance(message, Mra) else 0
            one.deadline = now + one.retry_ns + extra

    def _tell(
        self, one: Communication, tell: Tell, message: CmMessage | None, options: int
    ) -> None:
        plain = _PLAIN_EVENTS.get(tell)
        if plain is not None:
            self._events.append(plain(one.comm_id))
        elif tell == Tell.RESPONSE and isinstance(message, Rep):
            self._events.append(ConnectResponse(one.comm_id, message, options))
        elif tell == Tell.ESTABLISHED and isinstance(message, Rtu):
            self._events.append(Established(one.comm_id, message.private_data))
        elif tell == Tell.REJECTED and isinstance(message, Rej):
            self._events.append(Rejected(one.comm_id, message.reason, message.private_data))
        elif tell == Tell.SERVICE_RESPONSE and isinstance(message, SidrRep):
            self._events.append(ServiceResponse(one.comm_id, message))

    def _new(self, comm_id: int, gid: bytes, state: CmState, transaction: int) -> Communication:
        interval_ns = timeout_ns(self._options.response_timeout_code)
        return Communication(
            comm_id=comm_id,
            gid=gid,
            state=state,
            transaction_id=transaction,
            max_retries=self._options.max_retries,
            retry_ns=interval_ns,
            linger_ns=_LINGER_INTERVALS * interval_ns,
            service_timeout_code=self._options.service_timeout_code,
        )

    def _new_transaction(self) -> int:
        self._next_transaction += 1
        return self._next_transaction


_PLAIN_EVENTS: Mapping[Tell, type[Unreachable] | type[Disconnected] | type[TimewaitExit]] = {
    Tell.UNREACHABLE: Unreachable,
    Tell.DISCONNECTED: Disconnected,
    Tell.TIMEWAIT_EXIT: TimewaitExit,
}


def _learn(found: Communication, message: CmMessage) -> None:
    """What the peer's answer tells about it."""
    if found.remote_comm_id == 0 and isinstance(message, Rep | Mra):
        found.remote_comm_id = message.local_comm_id
    if found.remote_qpn == 0 and isinstance(message, Rep):
        found.remote_qpn = message.local_qpn


def _interval_ns(code: int) -> int:
    """A timeout that a peer names, as far as one bears with it."""
    return timeout_ns(min(code, _MAX_TIMEOUT_CODE))
