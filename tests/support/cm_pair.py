"""Two connection managers joined by a channel that a test can script, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from emulator.cm.communication import NEVER
from emulator.cm.events import CmEvent, ConnectRequest, ServiceRequest
from emulator.cm.manager import CmOptions, ConnectionManager, OutgoingMad
from emulator.cm.states import CmState
from emulator.wire.cm import CmMessage, PathRecord, Rep, Req, emit_cm, parse_cm
from tests.support.roce_pair import mapped_gid

SERVICE = 0x0106_1D2F
STEP_NS = 1_000_000
QPN = {"a": 0x101, "b": 0x202}
ACTIVE, PASSIVE = "a", "b"

OPTIONS = CmOptions()

MadChannel = Callable[[list[OutgoingMad]], list[OutgoingMad]]
_E = TypeVar("_E")


def request(gid: bytes, peer: bytes, qpn: int = QPN["a"], private_data: bytes = b"") -> Req:
    """A REQ as a consumer gives it."""
    return Req(
        local_comm_id=0,
        service_id=SERVICE,
        local_qpn=qpn,
        starting_psn=0x123456,
        primary=PathRecord(gid, peer),
        local_ca_guid=0xA,
        private_data=private_data,
    )


def reply(private_data: bytes = b"") -> Rep:
    """A REP as a consumer gives it."""
    return Rep(0, 0, QPN["b"], 0x654321, local_ca_guid=0xB, private_data=private_data)


class Side:
    """A manager, what it has sent and what it has told."""

    def __init__(self, address: int, seed: int, options: CmOptions) -> None:
        self.gid = mapped_gid(address)
        self.manager = ConnectionManager(random.Random(seed), options)
        self.sent: list[CmMessage] = []
        self.events: list[CmEvent] = []

    def outgoing(self) -> list[OutgoingMad]:
        """MADs that are to be sent now; remembered in ``sent``."""
        mads = self.manager.take_mads()
        self.sent += [parse_cm(mad.data)[1] for mad in mads]
        return mads

    def news(self) -> list[CmEvent]:
        """Events since the last call; remembered in ``events``."""
        new = self.manager.take_events()
        self.events += new
        return new

    def told(self, kind: type[_E]) -> list[_E]:
        """All events of a kind so far."""
        self.news()
        return [event for event in self.events if isinstance(event, kind)]

    def names(self) -> list[str]:
        """Names of the messages it has sent so far."""
        self.manager_has_sent_everything()
        return [type(message).__name__ for message in self.sent]

    def manager_has_sent_everything(self) -> None:
        """A test that looks at ``sent`` must not overlook what has not left yet."""
        assert not self.manager.take_mads()


class CmPair:
    """``a`` connects, ``b`` listens; ``to_a`` and ``to_b`` may be replaced by a test."""

    def __init__(self, options: CmOptions = OPTIONS) -> None:
        self.now = 0
        self.a = Side(1, 1, options)
        self.b = Side(2, 2, options)
        self.listener = self.b.manager.listen(SERVICE, 64)
        self.to_a: MadChannel = list
        self.to_b: MadChannel = list

    def connect(self, qpn: int = QPN["a"]) -> int:
        """Send a REQ from a to b."""
        return self.a.manager.connect(request(self.a.gid, self.b.gid, qpn), self.now)

    def exchange(self) -> bool:
        """Carry what is to be sent, once each way; False when there was nothing."""
        forth = self.a.outgoing()
        for mad in self.to_b(forth):
            self.b.manager.receive(self.a.gid, mad.data, self.now)
        back = self.b.outgoing()
        for mad in self.to_a(back):
            self.a.manager.receive(self.b.gid, mad.data, self.now)
        self.now += STEP_NS
        return bool(forth or back)

    def settle(self) -> None:
        """Carry until both are silent; no timer runs out."""
        while self.exchange():
            pass

    def tick(self) -> bool:
        """Go to the next deadline of either side; False when there is none."""
        deadline = min(self.a.manager.next_deadline(), self.b.manager.next_deadline())
        if deadline == NEVER:
            return False
        self.now = max(self.now, deadline)
        for side in (self.a, self.b):
            side.manager.advance(self.now)
        return True

    def run(self, react: Callable[[Side, CmEvent], None], max_ticks: int = 500) -> None:
        """Carry, react to events and let time pass until nothing is left to happen."""
        for _ in range(max_ticks):
            while True:
                carried = self.exchange()
                news = [(side, event) for side in (self.a, self.b) for event in side.news()]
                for side, event in news:
                    react(side, event)
                if not carried and not news:
                    break
            if not self.tick():
                return
        raise AssertionError("the managers do not come to rest")

    def requested(self) -> ConnectRequest:
        """The request that b has been told of last."""
        return self.b.told(ConnectRequest)[-1]


def nothing(mads: list[OutgoingMad]) -> list[OutgoingMad]:
    """A channel that loses everything."""
    return []


@dataclass
class Connection:
    """A pair with one communication, brought to some state."""

    pair: CmPair = field(default_factory=CmPair)
    a: int = 0
    b: int = 0

    def request(self) -> Connection:
        """Send the REQ and let it arrive."""
        self.a = self.pair.connect()
        self.pair.settle()
        self.b = self.pair.requested().comm_id
        return self

    def accept(self) -> Connection:
        """Send the REP and let it arrive."""
        self.pair.b.manager.accept(self.b, reply(), self.pair.now)
        self.pair.settle()
        return self

    def establish(self) -> Connection:
        """Send the RTU and let it arrive."""
        self.pair.a.manager.establish(self.a, self.pair.now)
        self.pair.settle()
        return self

    def side(self, name: str) -> tuple[Side, int]:
        """A side, and its id of the communication."""
        return (self.pair.a, self.a) if name == ACTIVE else (self.pair.b, self.b)

    @property
    def states(self) -> tuple[CmState, CmState]:
        """Where both sides stand."""
        return self.pair.a.manager.state(self.a), self.pair.b.manager.state(self.b)

    def deliver(self, to: str, message: CmMessage) -> list[CmMessage]:
        """Give one side a message of the other; return what it sends in answer."""
        side, _ = self.side(to)
        sender, _ = self.side(PASSIVE if to == ACTIVE else ACTIVE)
        before = len(side.sent)
        side.manager.receive(sender.gid, emit_cm(message, 5), self.pair.now)
        side.outgoing()
        return side.sent[before:]

    def expire(self, name: str) -> list[CmMessage]:
        """Let the timer of one side run out; return what it sends."""
        side, _ = self.side(name)
        before = len(side.sent)
        self.pair.now = max(self.pair.now, side.manager.next_deadline())
        side.manager.advance(self.pair.now)
        side.outgoing()
        return side.sent[before:]


def established() -> Connection:
    """A pair with a connection."""
    return Connection().request().accept().establish()


def asked() -> tuple[CmPair, int, ServiceRequest]:
    """A pair of which a has asked for a datagram service: its id, and what b is told."""
    pair = CmPair()
    comm_id = pair.a.manager.resolve_service(pair.b.gid, SERVICE, b"hello", pair.now)
    pair.settle()
    (question,) = pair.b.told(ServiceRequest)
    return pair, comm_id, question
