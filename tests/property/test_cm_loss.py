"""Whatever is lost, repeated or late: both sides have a connection, or both have an error."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.cm.events import (
    CmEvent,
    ConnectRequest,
    ConnectResponse,
    Disconnected,
    Established,
    Rejected,
    Unreachable,
)
from emulator.cm.manager import CmOptions, OutgoingMad
from tests.support.cm_pair import (
    ACTIVE,
    PASSIVE,
    CmPair,
    Side,
    reply,
)


@dataclass
class Chaos:
    """Drops, repeats and reorders MADs from a seed; silent loss of one direction from a time."""

    rng: random.Random
    drop: float
    repeat: float
    reorder: float
    dead: bool = False
    held: list[OutgoingMad] = field(default_factory=list)

    def __call__(self, mads: list[OutgoingMad]) -> list[OutgoingMad]:
        arriving, self.held = self.held, []
        for mad in mads:
            if self.dead or self.rng.random() < self.drop:
                continue
            copies = 2 if self.rng.random() < self.repeat else 1
            for _ in range(copies):
                late = self.rng.random() < self.reorder
                (self.held if late else arriving).append(mad)
        return arriving


@dataclass
class Consumer:
    """Accepts, establishes, and remembers how every connection went."""

    pair: CmPair
    outcome: dict[tuple[str, int], str] = field(default_factory=dict)
    peer_of: dict[int, int] = field(default_factory=dict)

    def react(self, side: Side, event: CmEvent) -> None:
        name = ACTIVE if side is self.pair.a else PASSIVE
        manager, now, key = side.manager, self.pair.now, (name, event.comm_id)
        if isinstance(event, ConnectRequest):
            self.peer_of[event.req.local_comm_id] = event.comm_id
            manager.accept(event.comm_id, reply(), now)
        elif isinstance(event, ConnectResponse):
            manager.establish(event.comm_id, now)
            self.outcome[key] = "established"
        elif isinstance(event, Established):
            self.outcome[key] = "established"
        elif isinstance(event, Rejected | Unreachable | Disconnected):
            self.outcome[key] = "ended"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    drop=st.floats(0, 0.4),
    repeat=st.floats(0, 0.4),
    reorder=st.floats(0, 0.4),
    dies=st.sampled_from(["nobody", "a to b", "b to a"]),
    after=st.integers(0, 6),
)
def test_every_connect_ends_alike_on_both_sides(
    seed: int, drop: float, repeat: float, reorder: float, dies: str, after: int
) -> None:
    rng = random.Random(seed)
    pair = CmPair(CmOptions(max_retries=15))
    forth, back = (Chaos(rng, drop, repeat, reorder) for _ in range(2))
    pair.to_b, pair.to_a = forth, back
    consumer = Consumer(pair)
    connects = [pair.connect(0x400 + index) for index in range(4)]
    for _ in range(after):
        pair.exchange()
        for side in (pair.a, pair.b):
            for event in side.news():
                consumer.react(side, event)
    forth.dead, back.dead = dies == "a to b", dies == "b to a"
    pair.run(consumer.react)
    for comm_id in connects:
        peer = consumer.peer_of.get(comm_id)
        theirs = "ended" if peer is None else consumer.outcome[PASSIVE, peer]
        if back.dead and (consumer.outcome[ACTIVE, comm_id], theirs) == ("established", "ended"):
            # Nothing can be heard from the peer, so that the queue pair's retries run out.
            pair.a.manager.disconnect(comm_id, pair.now)
            pair.run(consumer.react)
        assert consumer.outcome[ACTIVE, comm_id] == theirs
    alive = sum(outcome == "established" for outcome in consumer.outcome.values())
    if dies == "nobody":
        assert alive == 2 * len(connects)
    # What has ended is forgotten, what lives is kept.
    assert len(pair.a.manager) + len(pair.b.manager) == alive
