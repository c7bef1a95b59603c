"""How a NIC is put together: the one place that knows the order of its parts.

From the wire inwards: the link, the faults that it shall have, the trace, the capture, the
engine. So trace and capture show what the engine sent and what reached it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from emulator.link.faults import FaultLink, FaultPlan
from emulator.link.frames import Link
from emulator.link.pcap import PcapLink
from emulator.link.trace import TraceLink
from emulator.nic.softnic import SoftNic
from emulator.roce.engine import RoceEngine
from emulator.trace.sinks import JsonLines, Sink
from emulator.trace.tracer import Tracer
from kvlane.errors import ConfigError
from kvlane.seams import Clock
from kvlane.verbs.enums import Mtu


@dataclass(frozen=True, slots=True, kw_only=True)
class NicParts:
    """What a NIC has besides link and engine; nothing, by default."""

    mtu: Mtu = Mtu.MTU_4096
    """The port's MTU, which the link's packets must have room for."""
    faults: FaultPlan = field(default_factory=FaultPlan)
    pcap: str = ""
    """Path of the capture; empty for none."""
    trace: str = ""
    """Path of the trace, JSON lines; empty for none."""
    congestion_bps: int = 0
    """Line rate from which congestion control slows down, bit/s; 0 for no congestion control."""


def assemble_nic(
    link: Link, parts: NicParts, seed: int, clock: Clock = time.monotonic_ns
) -> SoftNic:
    """A NIC on a link that has been opened for it, and which is closed if this fails.

    ``seed`` decides faults and first PSNs. ``ConfigError`` when a file cannot be written.
    """
    try:
        sink = JsonLines(parts.trace) if parts.trace else None
        wrapped = _wrapped(link, parts, sink, random.Random(seed), clock)
    except OSError as error:
        link.close()
        raise ConfigError(
            f"pcap or trace: cannot write {error.filename}: {error.strerror}; "
            f"name a file in a directory that exists"
        ) from error
    engine = RoceEngine(
        gid=link.gid,
        source_port=link.source_port,
        window_bytes=link.receive_window_bytes,
        rng=random.Random(seed + 1),
        port_mtu=parts.mtu,
        more_gids=link.gids[1:],
    )
    if parts.congestion_bps:
        engine.enable_congestion_control(parts.congestion_bps)
    if sink is not None:
        Tracer(engine, sink, clock)
    return SoftNic(engine, wrapped, clock)


def _wrapped(
    link: Link, parts: NicParts, sink: Sink | None, rng: random.Random, clock: Clock
) -> Link:
    if parts.faults != FaultPlan():
        link = FaultLink(link, parts.faults, rng)
    if sink is not None:
        link = TraceLink(link, sink, clock)
    if parts.pcap:
        link = PcapLink(link, parts.pcap, clock)
    return link
