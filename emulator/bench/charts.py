"""``charts``: Retrieve and Store against block size and against queue depth, over each link.

Every point has an agent, rows and a limit of its own, goes around the same number of bytes
whatever the size of its blocks, and is the median of its rounds.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from emulator.bench.limits import LIMIT_NAMES, limit_of
from emulator.bench.report import Report
from emulator.bench.rounds import Progress, alternate
from emulator.bench.showing import markdown_table, terminal_text
from emulator.bench.transfer import GBPS, Size, open_lanes, our_retrieve, our_store
from emulator.bench.workload import LINKS, MIB
from kvlane.report.line_chart import Chart, Line, as_svg

NAME = "charts"
RETRIEVE, STORE, LIMIT = "Retrieve", "Store", "limit"
_KIB = 1024
_BAR_CELLS = 12


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one chart varies, and what it keeps."""

    name: str
    """Of the files."""
    x_name: str
    sizes: tuple[Size, ...]
    x: Callable[[Size], int]
    label: Callable[[Size], str]


def _size(block_bytes: int, depth: int) -> Size:
    """Around 64 MiB, four times a turn: more than caches of a core hold."""
    return Size(block_bytes, depth, stored=max(depth, 64 * MIB // block_bytes), repeat=4)


def _bytes_label(size: Size) -> str:
    kib = size.block_bytes // _KIB
    return f"{kib} KiB" if kib < _KIB else f"{kib // _KIB} MiB"


SWEEPS = (
    Sweep(
        name="block-size",
        x_name="bytes of a block, 16 blocks in flight",
        sizes=tuple(_size(4 * _KIB << shift, 16) for shift in range(0, 12, 2)),
        x=lambda size: size.block_bytes,
        label=_bytes_label,
    ),
    Sweep(
        name="queue-depth",
        x_name="blocks in flight, of 1 MiB each",
        sizes=tuple(_size(MIB, 1 << shift) for shift in range(7)),
        x=lambda size: size.depth,
        label=lambda size: str(size.depth),
    ),
)


@dataclass(frozen=True, slots=True)
class Point:
    """Medians at one place of a chart, in GB/s."""

    sweep: str
    link: str
    block_bytes: int
    depth: int
    label: str
    retrieve: float
    store: float
    limit: float
    limit_name: str


@dataclass(slots=True)
class Curves:
    """All points, in the order in which they were measured."""

    points: list[Point] = field(default_factory=list)

    def as_json(self) -> str:
        """One object."""
        return json.dumps({"points": [asdict(point) for point in self.points]})

    def as_markdown(self) -> str:
        """One table."""
        heads = ("sweep", "link", "at", "Retrieve, GB/s", "Store, GB/s", "limit, GB/s", "limit is")
        return markdown_table(heads, [_cells(point) for point in self.points])

    def as_text(self) -> str:
        """Bars for a terminal."""
        return terminal_text(
            *(
                _bars(f"{link}: {GBPS} by {sweep.x_name}", points)
                for sweep, link, points in self._charts()
            )
        )

    def write_svg(self, folder: Path) -> list[Path]:
        """A file for every sweep and link; which they are."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for sweep, link, points in self._charts():
            path = folder / f"{sweep.name}-{link}.svg"
            path.write_text(as_svg(_chart(sweep, link, points)))
            written.append(path)
        return written

    def _charts(self) -> Iterator[tuple[Sweep, str, list[Point]]]:
        for sweep in SWEEPS:
            for link in LINKS:
                points = [p for p in self.points if (p.sweep, p.link) == (sweep.name, link)]
                if points:
                    yield sweep, link, points


def _cells(point: Point) -> tuple[str, ...]:
    rates = (f"{rate:.3g}" for rate in (point.retrieve, point.store, point.limit))
    return (point.sweep, point.link, point.label, *rates, point.limit_name)


def _chart(sweep: Sweep, link: str, points: Sequence[Point]) -> Chart:
    xs = [float(sweep.x(Size(point.block_bytes, point.depth))) for point in points]
    return Chart(
        title=f"Retrieve and Store over {link}",
        x_name=sweep.x_name,
        y_name=GBPS,
        lines=(
            Line(RETRIEVE, [(x, point.retrieve) for x, point in zip(xs, points, strict=True)]),
            Line(STORE, [(x, point.store) for x, point in zip(xs, points, strict=True)]),
            Line(
                points[0].limit_name,
                [(x, point.limit) for x, point in zip(xs, points, strict=True)],
                is_bound=True,
            ),
        ),
        x_labels={x: point.label for x, point in zip(xs, points, strict=True)},
        x_is_log=True,
    )


def _bars(title: str, points: Sequence[Point]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("at", RETRIEVE, STORE, f"{LIMIT}: {points[0].limit_name}"):
        table.add_column(heading, min_width=7)
    most = max(max(point.retrieve, point.store, point.limit) for point in points)
    for point in points:
        rates = (point.retrieve, point.store, point.limit)
        table.add_row(point.label, *(_bar(rate, most) for rate in rates))
    return table


def _bar(rate: float, most: float) -> str:
    return f"{'█' * max(1, round(_BAR_CELLS * rate / most))} {rate:.3g}"


def run(rounds: int, progress: Progress, sweeps: Sequence[Sweep] = SWEEPS) -> Curves:
    """Measure."""
    curves = Curves()
    for sweep in sweeps:
        for link in LINKS:
            for size in sweep.sizes:
                progress(f"{sweep.name} over {link}: {sweep.label(size)}")
                curves.points.append(_point(sweep, link, size, rounds))
    return curves


def _point(sweep: Sweep, link: str, size: Size, rounds: int) -> Point:
    with ExitStack() as undo:
        lanes = open_lanes(link, size, undo)
        sides = {
            # Made anew for every turn: it asks for what was stored last.
            RETRIEVE: lambda: our_retrieve(lanes, size)(),
            STORE: our_store(lanes, size),
            LIMIT: limit_of(link, size, undo),
        }
        values = alternate(rounds, sides, lambda _: None, Report())
    retrieve, store, limit = (statistics.median(values[name]) for name in sides)
    return Point(
        sweep=sweep.name,
        link=link,
        block_bytes=size.block_bytes,
        depth=size.depth,
        label=sweep.label(size),
        retrieve=retrieve,
        store=store,
        limit=limit,
        limit_name=LIMIT_NAMES[link],
    )
