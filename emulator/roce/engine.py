"""``RoceEngine``: the transport of one NIC port as an object, sans-IO.

It takes frames and the time, and fills bursts of frames to send. It reads no clock, opens
no socket and draws randomness only from the generator it is given. Calls are not
thread-safe; whoever owns the engine serialises them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.link.frames import FRAME, Burst
from emulator.roce._event_kernels import take_event
from emulator.roce._queue_kernels import take_ready_cq
from emulator.roce._receive_kernels import receive_burst
from emulator.roce._transmit_kernels import next_deadline, transmit_burst
from emulator.roce.completion_queues import CqTable, SrqTable
from emulator.roce.congestion.state import CongestionAlgorithm
from emulator.roce.observer import EngineObserver
from emulator.roce.queue_pairs import QpTable
from emulator.roce.regions import RegionTable
from emulator.roce.state import COUNTER_NAMES, COUNTERS, EVENT, MAX_EVENTS, NIC
from emulator.wire._icrc_kernels import ICRC_WORK
from kvlane.seams import Rng
from kvlane.verbs.enums import EventType, Mtu
from kvlane.verbs.records import new_records

DEFAULT_PKEY = 0xFFFF
"""The default partition, full member (IBTA 1.7 section 10.9.1.1)."""
CNP_INTERVAL_NS = 4_000
"""MIN_TIME_BETWEEN_CNPS, ConnectX's default."""
_SCRATCH_BYTES = 256


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes of the engine's tables; powers of two where said."""

    max_qps: int = 1024
    """A power of two: the low bits of a QP number are its index."""
    max_cqs: int = 1024
    max_srqs: int = 256
    max_mrs: int = 4096


@dataclass(frozen=True, slots=True)
class AsyncEvent:
    """Something that nobody waited for (IBTA 1.7 section 11.6.3)."""

    event: EventType
    subject: int
    """Number of the QP, or index of the CQ or SRQ, that it is about."""


class RoceEngine:
    """QPs, CQs and memory regions of one port, and the packets between them."""

    def __init__(
        self,
        *,
        gid: bytes,
        source_port: int,
        window_bytes: int,
        rng: Rng,
        port_mtu: Mtu = Mtu.MTU_4096,
        more_gids: Sequence[bytes] = (),
        limits: EngineLimits = EngineLimits(),
    ) -> None:
        self.gid = gid
        self.gids = (gid, *more_gids)
        """The GID table: what ``sgid_index`` of a path counts."""
        self.port_mtu = port_mtu
        """What the port's longest packets carry: the most that a path MTU may be, and a
        datagram's length."""
        self.limits = limits
        self._nic = new_records(NIC, 1)
        self.address = int(self._nic.ctypes.data)
        """Of the ``NIC``, for kernels that drive the engine."""
        self._state = self._nic[0]
        self.regions = RegionTable(limits.max_mrs, rng)
        self.cqs = CqTable(limits.max_cqs, self._state)
        self.srqs = SrqTable(limits.max_srqs, self._state)
        self.qps = QpTable(limits.max_qps, self._state, self.gids, window_bytes, rng)
        self._counters = new_records(COUNTERS, 1)
        self._events = new_records(EVENT, MAX_EVENTS)
        self._event = new_records(EVENT, 1)
        self._scratch = np.zeros(_SCRATCH_BYTES, np.uint8)
        self._icrc = new_records(ICRC_WORK, 1)
        self._tx: Burst | None = None
        self._observer: EngineObserver | None = None
        self._init_nic(source_port)

    def _init_nic(self, source_port: int) -> None:
        nic = self._state
        nic.qps = self.qps.table.ctypes.data
        nic.qp_capacity = self.limits.max_qps
        nic.cqs = self.cqs.table.ctypes.data
        nic.srqs = self.srqs.table.ctypes.data
        nic.mrs = self.regions.table.ctypes.data
        nic.mr_capacity = self.limits.max_mrs
        nic.counters = self._counters.ctypes.data
        nic.events = self._events.ctypes.data
        nic.scratch = self._scratch.ctypes.data
        nic.icrc = self._icrc.ctypes.data
        nic.source_port = source_port
        nic.pkey = DEFAULT_PKEY
        nic.port_mtu = self.port_mtu.nbytes
        nic.cnp_interval_ns = CNP_INTERVAL_NS

    def enable_congestion_control(
        self,
        line_rate_bps: int,
        algorithm: CongestionAlgorithm = CongestionAlgorithm.DCQCN,
    ) -> None:
        """Mark frames as ECN capable, answer marks with CNPs, and slow down on CNPs.

        Holds for queue pairs that are connected afterwards.
        """
        self._state.ecn = 1
        self.qps.line_rate_bps = line_rate_bps
        self.qps.congestion_algorithm = algorithm

    def observe(self, observer: EngineObserver | None) -> None:
        """Let an observer watch, instead of the one before; ``None`` for nobody."""
        self._observer = observer
        self._state.observed = observer is not None
        self.qps.observer = observer

    # Frames and time

    def receive(self, burst: Burst, now: int) -> None:
        """Take the frames of a burst."""
        if self._observer is not None:
            self._receive_observed(self._observer, burst, now)
            return
        receive_burst(self._state, burst.frames_addr, burst.arena_addr, burst.count, now)

    def _receive_observed(self, observer: EngineObserver, burst: Burst, now: int) -> None:
        for index in range(burst.count):
            observer.before_receive(burst, index)
            frame = burst.frames_addr + index * FRAME.itemsize
            receive_burst(self._state, frame, burst.arena_addr, 1, now)
            observer.after_receive(burst, index, now)

    def transmit(self, burst: Burst, now: int) -> int:
        """Fill an empty burst with what is due; return the number of frames."""
        if burst is not self._tx:
            self.aim_at(burst)
        if self._observer is not None:
            self._observer.before_transmit()
        burst.count = int(transmit_burst(self._state, now))
        if self._observer is not None:
            self._observer.after_transmit(burst, now)
        return burst.count

    def aim_at(self, burst: Burst) -> None:
        """Tell the NIC into which burst frames go from now on."""
        self._tx = burst
        nic = self._state
        nic.tx_frames = burst.frames_addr
        nic.tx_arena = burst.arena_addr
        nic.tx_max_frames = len(burst.frames)
        nic.tx_max_bytes = len(burst.arena)

    def next_deadline(self) -> int:
        """When ``transmit`` must be called again at the latest, ns; 0 = at once."""
        return int(next_deadline(self._state))

    # What has happened

    @property
    def completions(self) -> int:
        """Completions pushed so far, polled or not."""
        return int(self._state.completions)

    def take_ready_cqs(self) -> list[int]:
        """Completion queues that have become ready since they were armed, each once."""
        ready: list[int] = []
        while self._state.cq_events:
            index = int(take_ready_cq(self._state, self.limits.max_cqs))
            if index >= 0:
                ready.append(index)
        return ready

    def take_events(self) -> list[AsyncEvent]:
        """Asynchronous events since the last call, oldest first."""
        events: list[AsyncEvent] = []
        while self._state.event_head != self._state.event_tail and take_event(
            self._state, self._event[0]
        ):
            event = self._event[0]
            events.append(AsyncEvent(EventType(int(event.event)), int(event.subject)))
        return events

    def counters(self) -> dict[str, int]:
        """All counters of the port by name."""
        return {name: int(self._counters[name][0]) for name in COUNTER_NAMES}
