"""Line charts as SVG; no library draws these few.

y begins at 0. Colours are of Okabe and Ito, which colour-blind people tell apart; a page may
replace them by its own, for a dark ground, through the CSS variables named here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from kvlane.report.axes import Axis, axis_around, axis_from_zero, tick_text

WIDTH, HEIGHT = 520, 320
_LEFT, _TOP, _BOTTOM = 52, 44, 50
_RIGHT, _RIGHT_WITH_LABELS = 16, 96
_LEGEND_ROW = 20
_FONT, _TITLE_FONT = 12, 15
_LETTER_WIDTH = 6.6
_LABEL_HEIGHT = 13
_MOST_MARKS = 24

COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#b8860b",
    "#56b4e9",
    "#7f5fd0",
    "#8c564b",
)
"""Those of the lines in turn; a page may set ``--line-0`` and so on. The fifth is darker than Okabe
and Ito's, to be seen on white."""
_DASHES = ("", "7 3", "2 3")
_INK, _GRID, _GROUND = "var(--ink,#222)", "var(--grid,#ddd)", "#fff"
_BOUND_DASHES = ("9 4", "2 3")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """Points in the order of x."""

    name: str
    points: Points
    is_bound: bool = False
    """A limit of the others, rather than one of them."""
    is_chosen: bool = False
    """The one that the chart is about."""


@dataclass(frozen=True, slots=True)
class Chart:
    """What is to be drawn."""

    title: str
    x_name: str
    y_name: str
    lines: Sequence[Line]
    x_labels: Mapping[float, str] = field(default_factory=dict)
    """The ticks of the x axis; without any, round values."""
    x_is_log: bool = False
    """Then every x is positive."""
    label_ends: bool = False
    """Whether each line has its name at its end."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a line is drawn."""

    colour: str
    dash: str
    width: float


def styles(lines: Sequence[Line]) -> list[Style]:
    """Of each line: bounds in ink, the others in colours of their own, dashed when these are used
    up."""
    found: list[Style] = []
    bounds = others = 0
    for line in lines:
        width = 3.2 if line.is_chosen else 1.8
        if line.is_bound:
            found.append(Style(_INK, _BOUND_DASHES[bounds % len(_BOUND_DASHES)], width))
            bounds += 1
        else:
            number = others % len(COLOURS)
            colour = f"var(--line-{number},{COLOURS[number]})"
            found.append(Style(colour, _DASHES[others // len(COLOURS) % len(_DASHES)], width))
            others += 1
    return found


def as_svg(chart: Chart) -> str:
    """A document of its own, with a title and a legend, on white."""
    rows = list(_legend_rows(chart))
    height = HEIGHT + _LEGEND_ROW * len(rows)
    parts = [
        _open_tag(chart, height, 'xmlns="http://www.w3.org/2000/svg" '),
        f'<rect width="{WIDTH}" height="{height}" fill="{_GROUND}"/>',
        _text(WIDTH / 2, 20, chart.title, size=_TITLE_FONT),
        *_plot(chart),
    ]
    for number, row in enumerate(rows):
        y = HEIGHT + _LEGEND_ROW * number + 6
        for x, name, style in row:
            parts += [swatch_line(x, y, style), _text(x + 26, y + 4, name, anchor="start")]
    return "\n".join([*parts, "</svg>", ""])


def as_figure(chart: Chart) -> str:
    """The drawing alone, to stand in a page that has title and legend."""
    return "\n".join([_open_tag(chart, HEIGHT, ""), *_plot(chart), "</svg>"])


def swatch_line(x: float, y: float, style: Style) -> str:
    """A piece of a line, for a legend."""
    return f'<path d="M{x:.1f},{y:.1f}h20" {_stroke(style)}/>'


def _open_tag(chart: Chart, height: int, namespace: str) -> str:
    return (
        f'<svg {namespace}viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(chart.title)}" font-family="sans-serif" font-size="{_FONT}">'
    )


def _legend_rows(chart: Chart) -> Iterator[list[tuple[float, str, Style]]]:
    """Places, names and styles, as many in a row as fit."""
    row: list[tuple[float, str, Style]] = []
    x = float(_LEFT)
    for line, style in zip(chart.lines, styles(chart.lines), strict=True):
        width = 42 + _LETTER_WIDTH * len(line.name)
        if row and x + width > WIDTH:
            yield row
            row, x = [], float(_LEFT)
        row.append((x, line.name, style))
        x += width
    if row:
        yield row


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values lie in the drawing."""

    x_axis: Axis
    y_axis: Axis
    right: float

    @staticmethod
    def around(chart: Chart) -> _Frame:
        every = [point for line in chart.lines for point in line.points]
        xs = [x for x, _ in every] + list(chart.x_labels)
        margin = _RIGHT_WITH_LABELS if chart.label_ends else _RIGHT
        return _Frame(
            axis_around(xs, is_log=chart.x_is_log),
            axis_from_zero(y for _, y in every),
            WIDTH - margin,
        )

    def x(self, value: float) -> float:
        return _LEFT + self.x_axis.share(value) * (self.right - _LEFT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - self.y_axis.share(value) * (HEIGHT - _TOP - _BOTTOM)


def _plot(chart: Chart) -> list[str]:
    frame = _Frame.around(chart)
    parts = [*_y_axis(chart, frame), *_x_axis(chart, frame)]
    drawn = list(zip(chart.lines, styles(chart.lines), strict=True))
    # What the chart is about lies on top.
    for line, style in sorted(drawn, key=lambda each: each[0].is_chosen):
        parts += _line(line, style, frame)
    if chart.label_ends:
        parts += _end_labels(drawn, frame)
    return parts


def _stroke(style: Style) -> str:
    dash = f"stroke-dasharray:{style.dash};" if style.dash else ""
    return f'fill="none" style="stroke:{style.colour};stroke-width:{style.width};{dash}"'


def _text(
    x: float, y: float, text: str, *, anchor: str = "middle", size: int = _FONT, ink: str = _INK
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {place} style="fill:{ink}">{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str = _GRID) -> str:
    return f'<path d="M{x1:.1f},{y1:.1f}L{x2:.1f},{y2:.1f}" style="stroke:{colour}"/>'


def _y_axis(chart: Chart, frame: _Frame) -> list[str]:
    parts = [_text(6, _TOP - 12, chart.y_name, anchor="start")]
    for value in frame.y_axis.ticks():
        y = frame.y(value)
        parts.append(_rule(_LEFT, y, frame.right, y))
        parts.append(_text(_LEFT - 6, y + 4, tick_text(value), anchor="end"))
    return parts


def _x_axis(chart: Chart, frame: _Frame) -> list[str]:
    base = HEIGHT - _BOTTOM
    labels = chart.x_labels or {value: tick_text(value) for value in frame.x_axis.ticks()}
    parts = [_text((_LEFT + frame.right) / 2, base + 38, chart.x_name)]
    for value, label in labels.items():
        x = frame.x(value)
        parts += [_rule(x, base, x, base + 4), _text(x, base + 18, label)]
    return parts


def _line(line: Line, style: Style, frame: _Frame) -> list[str]:
    places = [(frame.x(x), frame.y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline points="{path}" {_stroke(style)}/>']
    if len(places) > _MOST_MARKS:
        return parts
    for (x, y), (at, value) in zip(places, line.points, strict=True):
        told = escape(f"{line.name}: {tick_text(value)} at {tick_text(at)}")
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{1 + style.width:.1f}" '
            f'style="fill:{style.colour}"><title>{told}</title></circle>'
        )
    return parts


def _end_labels(drawn: Sequence[tuple[Line, Style]], frame: _Frame) -> list[str]:
    """Names beside the ends of lines, moved apart where they would lie on each other."""
    ends = [
        (frame.y(line.points[-1][1]), frame.x(line.points[-1][0]), line.name, style)
        for line, style in drawn
        if line.points
    ]
    ends.sort(key=lambda end: end[:3])
    parts: list[str] = []
    lowest = HEIGHT - _BOTTOM + 8.0
    places = [end[0] for end in ends]
    for at in range(len(places)):
        places[at] = max(places[at], (places[at - 1] + _LABEL_HEIGHT) if at else _TOP)
    for at in range(len(places) - 1, -1, -1):
        places[at] = min(places[at], lowest - _LABEL_HEIGHT * (len(places) - 1 - at))
    for (y, x, name, style), place in zip(ends, places, strict=True):
        parts.append(_rule(x + 4, y, frame.right + 12, place, style.colour))
        parts.append(_text(frame.right + 15, place + 4, name, anchor="start", ink=style.colour))
    return parts
