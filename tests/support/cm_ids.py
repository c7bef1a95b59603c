"""IDs of ``pyverbs.cmid`` in one process, for tests."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

from emulator.pyverbs.cmid import (
    CMID,
    AddrInfo,
    CMEvent,
    CMEventChannel,
    ConnParam,
)
from emulator.pyverbs.librdmacm_enums import (
    RAI_PASSIVE,
    rdma_cm_event_type,
    rdma_port_space,
)
from emulator.pyverbs.qp import QPCap, QPInitAttr
from kvlane.verbs.enums import QpType, WcStatus
from tests.support.cm_ports import PATIENCE_S

_E = rdma_cm_event_type
TCP, UDP = rdma_port_space.RDMA_PS_TCP, rdma_port_space.RDMA_PS_UDP
IP = "127.0.0.1"
PORT = "7471"
SIZE = 100


def init_attr(space: int = TCP, **options: Any) -> QPInitAttr:
    """What a queue pair is to be like."""
    kind = QpType.RC if space == TCP else QpType.UD
    return QPInitAttr(kind, cap=QPCap(max_send_wr=4, max_recv_wr=4), **options)


def to_listen(space: int = TCP, port: str = PORT) -> AddrInfo:
    """Where a server listens."""
    return AddrInfo(src=IP, src_service=port, port_space=space, flags=RAI_PASSIVE)


def to_connect(space: int = TCP, port: str = PORT) -> AddrInfo:
    """Where a client connects to."""
    return AddrInfo(src=IP, dst=IP, dst_service=port, port_space=space)


class Side:
    """An event channel and an ID on it."""

    def __init__(self, space: int = TCP) -> None:
        self.channel = CMEventChannel()
        self.id = CMID(creator=self.channel, port_space=space)

    def expect(self, kind: rdma_cm_event_type) -> CMEvent:
        """The next event, which must be of a kind."""
        assert select.select([self.channel.fd], [], [], PATIENCE_S)[0]
        event = CMEvent(self.channel)
        assert event.event_type == kind, event.event_str()
        return event

    def is_silent(self) -> bool:
        """Whether no event waits."""
        return not select.select([self.channel.fd], [], [], 0)[0]


def listening(space: int = TCP) -> Side:
    """A server that listens."""
    server = Side(space)
    server.id.bind_addr(to_listen(space))
    server.id.listen()
    return server


def resolved(space: int = TCP) -> Side:
    """A client that has only to connect."""
    client = Side(space)
    client.id.resolve_addr(to_connect(space))
    client.expect(_E.RDMA_CM_EVENT_ADDR_RESOLVED).ack_cm_event()
    client.id.resolve_route()
    client.expect(_E.RDMA_CM_EVENT_ROUTE_RESOLVED).ack_cm_event()
    return client


class Connection:
    """A connected pair of asynchronous IDs."""

    def __init__(
        self,
        asked: ConnParam | None = None,
        answered: ConnParam | None = None,
        prepare: Callable[[CMID], None] = lambda _: None,
    ) -> None:
        self.server, self.client = listening(), resolved()
        self.client.id.create_qp(init_attr())
        prepare(self.client.id)
        self.client.id.connect(asked or ConnParam())
        self.request = self.server.expect(_E.RDMA_CM_EVENT_CONNECT_REQUEST)
        self.child = CMID(creator=self.request, listen_id=self.server.id)
        self.child.create_qp(init_attr())
        prepare(self.child)
        self.child.accept(answered or ConnParam())
        self.response = self.client.expect(_E.RDMA_CM_EVENT_ESTABLISHED)
        self.server.expect(_E.RDMA_CM_EVENT_ESTABLISHED)


def send(source: CMID, target: CMID) -> None:
    """A message arrives as it is."""
    outbox, inbox = source.reg_msgs(SIZE), target.reg_msgs(SIZE)
    outbox.write(bytes(range(SIZE)), SIZE)
    target.post_recv(inbox)
    source.post_send(outbox)
    sent, received = source.get_send_comp(), target.get_recv_comp()
    assert sent is not None
    assert received is not None
    assert (sent.status, received.status) == (WcStatus.SUCCESS, WcStatus.SUCCESS)
    assert received.byte_len == SIZE
    assert inbox.read(SIZE, 0) == bytes(range(SIZE))
