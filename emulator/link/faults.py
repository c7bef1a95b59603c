"""A link that loses, repeats, reorders, spoils and delays frames on purpose.

It wraps any link and acts on both directions. All chance comes from the ``rng`` and all
time from ``now``, so the same calls with the same seed give the same faults. It decides
about a frame once, when the frame comes in; after that it loses none, however little the
link below accepts, but what is longer than a whole burst.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from emulator.link.damage import MAX_TRAILING_BYTES, damaged
from emulator.link.datagrams import Datagram, datagrams_of, fill
from emulator.link.frames import Burst, Link
from emulator.link.wrapper import LinkWrapper
from kvlane.errors import ConfigError
from kvlane.seams import Rng

HOLD_NS = 5_000_000
"""The longest that a reordered frame waits for later ones, beside the plan's delay."""
MAX_OVERTAKING_FRAMES = 3
_CONGESTION_EXPERIENCED = 0b11
"""CE of the ECN field, which is also its mask (RFC 3168 section 5)."""

FAULTS = ("drop", "duplicate", "reorder", "corrupt", "ecn")
_WRITTEN_NAMES = {
    "drop": "drop",
    "dup": "duplicate",
    "reorder": "reorder",
    "corrupt": "corrupt",
    "ecn": "ecn",
    "delay_ms": "delay_ms",
}
"""Name in a configuration -> field of ``FaultPlan``."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Probabilities are per frame, 0 to 1, and independent of each other."""

    drop: float = 0.0
    duplicate: float = 0.0
    """Delivered twice."""
    reorder: float = 0.0
    """Held back until 1 to 3 later frames have passed."""
    corrupt: float = 0.0
    """A bit flipped, bytes spoilt, the end cut off or garbage appended; see ``damage``."""
    ecn: float = 0.0
    """Marked as having met congestion, as a switch does with a long queue; only frames of
    senders that say they heed it (RFC 3168 section 5)."""
    delay_ms: float = 0.0
    """Added to every frame."""

    def __post_init__(self) -> None:
        for name in FAULTS:
            probability = getattr(self, name)
            if not 0.0 <= probability <= 1.0:
                raise ConfigError(f"faults: {name}={probability} is no probability; write 0 to 1")
        if not 0.0 <= self.delay_ms < math.inf:
            raise ConfigError(f"faults: delay_ms={self.delay_ms} is no time; write 0 or more")

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Read ``"drop=0.01,dup=0.01,delay_ms=2"``; empty text is a plan without faults."""
        values: dict[str, float] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, _, number = (word.strip() for word in item.partition("="))
            if name not in _WRITTEN_NAMES:
                known = ", ".join(_WRITTEN_NAMES)
                raise ConfigError(f"faults: {name!r} is unknown; one of {known}")
            if _WRITTEN_NAMES[name] in values:
                raise ConfigError(f"faults: {name} is given twice; write it once")
            try:
                values[_WRITTEN_NAMES[name]] = float(number)
            except ValueError:
                raise ConfigError(
                    f"faults: {item!r} has no number; write it as {name}=0.01"
                ) from None
        return cls(**values)


@dataclass(slots=True)
class _Held:
    """A frame that waits to be overtaken."""

    datagram: Datagram
    remaining_frames: int
    deadline: int


class _FaultyPath:
    """One direction: frames go in by ``push``, what is due comes out of ``ready``."""

    def __init__(self, plan: FaultPlan, rng: Rng, injected: dict[str, int]) -> None:
        self.ready: deque[Datagram] = deque()
        """Due now, in order; whoever delivers a frame takes it out."""
        self._plan = plan
        self._rng = rng
        self._injected = injected
        self._delay_ns = round(plan.delay_ms * 1_000_000)
        self._delayed: deque[tuple[int, Datagram]] = deque()
        self._held: list[_Held] = []

    def push(self, datagram: Datagram, now: int) -> None:
        """Decide the fate of a frame."""
        if self._happens("drop", self._plan.drop):
            return
        if datagram.payload and self._happens("corrupt", self._plan.corrupt):
            spoilt = damaged(datagram.payload, self._rng)
            datagram = Datagram(spoilt, datagram.descriptor)
        if self._plan.ecn and _heeds_marks(datagram) and self._happens("ecn", self._plan.ecn):
            datagram.descriptor["tos"] |= _CONGESTION_EXPERIENCED
        copies = 2 if self._happens("duplicate", self._plan.duplicate) else 1
        for _ in range(copies):
            if self._happens("reorder", self._plan.reorder):
                overtaking = self._rng.randrange(1, MAX_OVERTAKING_FRAMES + 1)
                self._held.append(_Held(datagram, overtaking, now + HOLD_NS))
            else:
                self._pass(datagram, now)

    def advance(self, now: int) -> None:
        """Make ready what has waited long enough."""
        overdue = [held for held in self._held if held.deadline <= now]
        self._held = [held for held in self._held if held.deadline > now]
        for held in overdue:
            self._delayed.append((now + self._delay_ns, held.datagram))
        while self._delayed and self._delayed[0][0] <= now:
            self.ready.append(self._delayed.popleft()[1])

    def next_release(self) -> int | None:
        """When to call ``advance`` again; ``None`` when nothing waits."""
        times = [held.deadline for held in self._held]
        if self._delayed:
            times.append(self._delayed[0][0])
        return min(times, default=None)

    def _pass(self, datagram: Datagram, now: int) -> None:
        due = now + self._delay_ns
        self._delayed.append((due, datagram))
        for held in self._held:
            held.remaining_frames -= 1
            if held.remaining_frames == 0:
                self._delayed.append((due, held.datagram))
        self._held = [held for held in self._held if held.remaining_frames]

    def _happens(self, fault: str, probability: float) -> bool:
        happens = self._rng.random() < probability
        self._injected[fault] += happens
        return happens


def _heeds_marks(datagram: Datagram) -> bool:
    """Whether its sender has set one of the ECN-capable codepoints; CE is one already."""
    return bool(datagram.descriptor["tos"] & _CONGESTION_EXPERIENCED)


class FaultLink(LinkWrapper):
    """A ``Link`` around another, with the faults of a plan in both directions.

    ``fileno`` does not tell of frames held here, and ``close`` forgets them.
    """

    def __init__(self, link: Link, plan: FaultPlan, rng: Rng) -> None:
        super().__init__(link)
        self._injected_outward = dict.fromkeys(FAULTS, 0)
        self._injected_inward = dict.fromkeys(FAULTS, 0)
        self._outward = _FaultyPath(plan, rng, self._injected_outward)
        self._inward = _FaultyPath(plan, rng, self._injected_inward)
        self._below_in = Burst(0, 0)
        self._below_out = Burst(0, 0)
        self._now = 0
        self.lost_sending = 0
        """Frames that no burst to the link below has room for."""
        self.lost_receiving = 0
        """Frames that no burst of whoever receives has room for."""

    def counters(self) -> dict[str, int]:
        """What the link below has counted, what is lost here without being a fault, and what is
        lost on purpose, as ``link_dropped``."""
        counters = self._link.counters()
        for name, lost in (
            ("link_lost_sending", self.lost_sending),
            ("link_lost_receiving", self.lost_receiving),
            ("link_dropped_sending", self._injected_outward["drop"]),
            ("link_dropped_receiving", self._injected_inward["drop"]),
        ):
            counters[name] = counters.get(name, 0) + lost
        return counters

    @property
    def injected(self) -> dict[str, int]:
        """How many frames got each fault, both directions together."""
        return {
            fault: self._injected_outward[fault] + self._injected_inward[fault] for fault in FAULTS
        }

    def send(self, burst: Burst) -> int:
        """Accept all frames, or none while the link below is still full from before.

        Time is that of the last ``receive``.
        """
        if not self._flush():
            return 0
        self._below_out = _as_large_as(burst, self._below_out)
        for datagram in datagrams_of(burst):
            self._outward.push(datagram, self._now)
        self._flush()
        return burst.count

    def receive(self, burst: Burst, now: int) -> int:
        """Deliver what is due of both directions: inward to ``burst``, outward to the link."""
        self._now = max(self._now, now)
        self._flush()
        self._inward.advance(self._now)
        if not self._inward.ready:
            self._below_in = _as_large_as(burst, self._below_in)
            self._below_in.clear()
            self._link.receive(self._below_in, now)
            for datagram in datagrams_of(self._below_in):
                self._inward.push(datagram, self._now)
            self._inward.advance(self._now)
        self.lost_receiving += fill(burst, self._inward.ready)
        return burst.count

    def next_release(self, now: int) -> int | None:
        """When to call ``receive`` though ``fileno`` is silent; ``None`` when there is no need.

        Frames that are already due give ``now``.
        """
        if self._inward.ready or self._outward.ready:
            return now
        times = (self._inward.next_release(), self._outward.next_release())
        return min((time for time in times if time is not None), default=None)

    def _flush(self) -> bool:
        """Hand on what is due outward; False when the link below did not take all of it."""
        self._outward.advance(self._now)
        ready = self._outward.ready
        while ready:
            self._below_out.clear()
            self.lost_sending += fill(self._below_out, ready)
            accepted = self._link.send(self._below_out)
            if accepted < self._below_out.count:
                refused = [*datagrams_of(self._below_out)][accepted:]
                ready.extendleft(reversed(refused))
                return False
        return True


def _as_large_as(wanted: Burst, mine: Burst) -> Burst:
    """``mine`` if ``wanted`` fits into it, else a larger one: no frame held may outgrow it.

    Not even one that garbage has been appended to.
    """
    frames = max(len(mine.frames), len(wanted.frames))
    arena_bytes = max(len(mine.arena), len(wanted.arena) + MAX_TRAILING_BYTES)
    if (frames, arena_bytes) == (len(mine.frames), len(mine.arena)):
        return mine
    return Burst(frames, arena_bytes)
