"""What a program is told of connection management, and the queue that it waits in."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from emulator.cm.events import CmEvent
from emulator.pyverbs._structure import PlainObject
from emulator.pyverbs.addr import AHAttr
from emulator.pyverbs.base import PyverbsCM
from emulator.pyverbs.fabric import EventQueue
from emulator.pyverbs.librdmacm_enums import rdma_cm_event_type
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError

if TYPE_CHECKING:
    from emulator.pyverbs._cm_endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class DatagramPeer:
    """The queue pair of a datagram service."""

    qpn: int
    qkey: int
    path: AHAttr


@dataclass(frozen=True, slots=True)
class News:
    """An event as programs see it."""

    event_type: rdma_cm_event_type
    endpoint: Endpoint
    """The new one of a request; else the one that it happened to."""
    private_data: bytes = b""
    status: int = 0
    """0, a negative errno, or the peer's reason."""
    peer: DatagramPeer | None = None


Pending: TypeAlias = "tuple[Endpoint, CmEvent | News]"
"""To whom something happened, and what."""


class CMEventChannel(PyverbsCM):
    """Tells of the events of IDs; ``fd`` can be waited for."""

    _kind: ClassVar[str] = "event_channel"

    def __init__(self) -> None:
        super().__init__()
        self.events: EventQueue[Pending] | None = EventQueue()

    @property
    def fd(self) -> int:
        """Readable while events wait."""
        return self.require_open().fd

    def require_open(self) -> EventQueue[Pending]:
        """The queue; a closed channel has none."""
        if self.events is None:
            raise PyverbsUserError("the event channel is closed")
        return self.events

    def close(self) -> None:
        """Close the descriptor; IDs that still use the channel tell nobody any more."""
        events, self.events = self.events, None
        if events is not None:
            events.close()


class CMEvent(PlainObject):
    """The next event of a channel; waits for it."""

    def __init__(self, channel: CMEventChannel) -> None:
        super().__init__()
        try:
            endpoint, event = channel.require_open().get()
        except BlockingIOError as error:
            raise PyverbsRDMAError("Failed to create CMEvent", errno.EAGAIN) from error
        self._news: News | None = endpoint.news(event)

    @property
    def news(self) -> News:
        """The event; an acknowledged one is gone."""
        if self._news is None:
            raise PyverbsUserError("the event has been acknowledged")
        return self._news

    @property
    def event_type(self) -> rdma_cm_event_type:
        """What happened."""
        return self.news.event_type

    @property
    def status(self) -> int:
        """0, a negative errno, or the peer's reason for a rejection."""
        return self.news.status

    @property
    def private_data(self) -> bytes:
        """What the peer has sent along, as long as the message has room."""
        return self.news.private_data

    def event_str(self) -> str:
        """The name of the event; empty when it has been acknowledged."""
        return "" if self._news is None else str(self._news.event_type.name)

    def ack_cm_event(self) -> None:
        """Give it back."""
        self._news = None

    def close(self) -> None:
        """Give it back."""
        self.ack_cm_event()
