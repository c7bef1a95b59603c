"""What a replay found out, for people as a table and for programs as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from rich.table import Table

from host_driver.replay.timeline import TimeWindows, Tokens


@dataclass(frozen=True, slots=True)
class Latency:
    """How long commands of one kind took, as the host saw it; None where there were none."""

    commands: int
    p50_us: float | None
    p99_us: float | None

    @classmethod
    def of(cls, samples_ns: Sequence[int]) -> Latency:
        """From the time of every command, in nanoseconds."""
        if not samples_ns:
            return cls(0, None, None)
        p50, p99 = np.percentile(np.asarray(samples_ns, np.float64) / 1000, [50, 99])
        return cls(len(samples_ns), round(float(p50), 3), round(float(p99), 3))

    def __str__(self) -> str:
        if self.p50_us is None or self.p99_us is None:
            return "none"
        return f"{self.p50_us:,.1f} / {self.p99_us:,.1f} us ({self.commands:,} commands)"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Counts, rates and times of one replay."""

    requests: int
    blocks_asked: int
    """Blocks of all prompts together."""
    blocks_hit: int
    """Of those, blocks that came back from the agent, right or wrong."""
    unbounded_hits: int
    """What ``blocks_hit`` is where nothing is ever evicted and the agent began empty."""
    blocks_stored: int
    """Published by this replay; a block that somebody else published first is not among them."""
    blocks_refused: int
    """Not stored because every slot was pinned or being written."""
    blocks_evicted: int
    """By the agent while the replay ran, for whichever session."""
    bytes_stored: int
    bytes_retrieved: int
    verification_errors: int
    """Blocks that came back other than they were stored."""
    retransmissions: int
    """Packets that either NIC sent again while the replay ran."""
    match: Latency
    retrieve: Latency
    store: Latency
    seconds: float
    tokens: Tokens = field(default_factory=Tokens)
    windows: TimeWindows = field(default_factory=TimeWindows)
    latency_quantiles_us: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Times of commands by kind, at ``timeline.SHARES``."""
    tier_counters: Mapping[str, int] = field(default_factory=dict)
    """What the agent counts of its tier of files: added while the replay ran, or, of what is a
    level, as it was at the end. Empty where there is no such tier."""

    @property
    def hit_rate(self) -> float:
        """Share of the blocks asked for that came back; 0 where none was asked for."""
        return self.blocks_hit / self.blocks_asked if self.blocks_asked else 0.0

    @property
    def unbounded_hit_rate(self) -> float:
        """The hit rate of a cache that never evicts, over the same requests."""
        return self.unbounded_hits / self.blocks_asked if self.blocks_asked else 0.0

    @property
    def gigabytes_per_second(self) -> float:
        """Payload in both directions over the time of the whole replay; 1 GB is 10^9 bytes."""
        moved = self.bytes_stored + self.bytes_retrieved
        return moved / self.seconds / 1e9 if self.seconds else 0.0

    def to_json(self) -> str:
        """One line: every field by its name, and the three rates."""
        rates = {
            "mode": "real",
            "hit_rate": self.hit_rate,
            "unbounded_hit_rate": self.unbounded_hit_rate,
            "gigabytes_per_second": self.gigabytes_per_second,
        }
        return json.dumps({**asdict(self), **rates})

    def to_table(self) -> Table:
        """Two columns, ordered as one reads it: did it hit, was it right, was it fast."""
        table = Table(title="replay", show_header=False)
        table.add_column("what")
        table.add_column("how much", justify="right")
        rows = [
            ("requests", f"{self.requests:,}"),
            ("blocks asked for", f"{self.blocks_asked:,}"),
            ("blocks hit", f"{self.blocks_hit:,} ({self.hit_rate:.2%})"),
            (
                "an unbounded cache hits",
                f"{self.unbounded_hits:,} ({self.unbounded_hit_rate:.2%})",
            ),
            ("blocks stored", f"{self.blocks_stored:,}"),
            ("blocks refused", f"{self.blocks_refused:,}"),
            ("blocks evicted", f"{self.blocks_evicted:,}"),
            ("verification errors", f"{self.verification_errors:,}"),
            ("stored", f"{self.bytes_stored / 1e9:,.3f} GB"),
            ("retrieved", f"{self.bytes_retrieved / 1e9:,.3f} GB"),
            ("time", f"{self.seconds:,.3f} s"),
            ("payload both ways", f"{self.gigabytes_per_second:,.3f} GB/s"),
            ("match p50 / p99", str(self.match)),
            ("retrieve p50 / p99", str(self.retrieve)),
            ("store p50 / p99", str(self.store)),
            ("packets sent again", f"{self.retransmissions:,}"),
            ("prefill tokens saved", f"{self.tokens.saved:,} of {self.tokens.asked:,}"),
            *((name, f"{value:,}") for name, value in self.tier_counters.items()),
        ]
        for row in rows:
            table.add_row(*row)
        return table
