"""A link that tells of every packet."""

from __future__ import annotations

from itertools import islice

from emulator.link.datagrams import Datagram, datagrams_of
from emulator.link.frames import Burst, Link
from emulator.link.wrapper import LinkWrapper
from emulator.trace.events import Direction
from emulator.trace.packets import packet_event
from emulator.trace.sinks import Sink
from kvlane.seams import Clock


class TraceLink(LinkWrapper):
    """Gives a ``Packet`` event for each frame that the link below accepts or delivers."""

    def __init__(self, link: Link, sink: Sink, clock: Clock) -> None:
        super().__init__(link)
        self._sink = sink
        self._clock = clock

    def send(self, burst: Burst) -> int:
        """Hand on, then tell of what was accepted."""
        accepted = self._link.send(burst)
        for datagram in islice(datagrams_of(burst), accepted):
            self._tell(datagram, Direction.SENT, self._clock())
        return accepted

    def receive(self, burst: Burst, now: int) -> int:
        """Tell of what has arrived."""
        count = self._link.receive(burst, now)
        for datagram in datagrams_of(burst):
            self._tell(datagram, Direction.RECEIVED, now)
        return count

    def close(self) -> None:
        """Close the link below and the sink."""
        super().close()
        self._sink.close()

    def _tell(self, datagram: Datagram, direction: Direction, at_ns: int) -> None:
        self._sink(packet_event(datagram.payload, datagram.descriptor, direction, at_ns))
