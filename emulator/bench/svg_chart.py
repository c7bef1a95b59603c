"""Line charts as SVG: x doubles from tick to tick, y begins at 0. No library draws these few."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 40, 76
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Of Okabe and Ito, which colour-blind people tell apart."""
_Y_TICKS, _LETTER_WIDTH = 5, 7

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """What is to be drawn."""

    title: str
    x_name: str
    y_name: str
    series: Mapping[str, Points]
    """Points in the order of x, which is positive."""
    x_labels: Mapping[float, str]
    """The ticks of the x axis."""


def as_svg(chart: Chart) -> str:
    """The chart as a document."""
    scale = _Scale.around(chart)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 22, chart.title, size=15),
        *_y_axis(chart, scale),
        *_x_axis(chart, scale),
    ]
    legend_x = _LEFT
    for (name, points), colour in zip(chart.series.items(), cycle(_COLOURS), strict=False):
        parts += [*_line(points, colour, scale), *_legend(name, colour, legend_x)]
        legend_x += 40 + _LETTER_WIDTH * len(name)
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where values lie."""

    low: float
    """Logarithm of the smallest x."""
    high: float
    top: float
    """The largest y of the axis."""

    @staticmethod
    def around(chart: Chart) -> _Scale:
        every = [point for points in chart.series.values() for point in points]
        logs = [math.log2(x) for x, _ in every] + [math.log2(x) for x in chart.x_labels]
        return _Scale(min(logs), max(logs), _round_up(max((y for _, y in every), default=1.0)))

    def x(self, value: float) -> float:
        share = (math.log2(value) - self.low) / ((self.high - self.low) or 1.0)
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - value / self.top * (HEIGHT - _TOP - _BOTTOM)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10 and so on that is not smaller."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 5, 10) if step * unit >= value)


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}>{escape(text)}</text>"


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ccc"/>'


def _y_axis(chart: Chart, scale: _Scale) -> list[str]:
    parts = [_text(_LEFT, _TOP - 6, chart.y_name)]
    for tick in range(_Y_TICKS + 1):
        value = scale.top * tick / _Y_TICKS
        y = scale.y(value)
        parts.append(_rule(_LEFT, y, WIDTH - _RIGHT, y))
        parts.append(_text(_LEFT - 6, y + 4, f"{value:g}", anchor="end"))
    return parts


def _x_axis(chart: Chart, scale: _Scale) -> list[str]:
    base = HEIGHT - _BOTTOM
    ticks = [_text(scale.x(x), base + 16, label) for x, label in chart.x_labels.items()]
    return [*ticks, _text(WIDTH / 2, base + 36, chart.x_name)]


def _line(points: Points, colour: str, scale: _Scale) -> list[str]:
    places = [(scale.x(x), scale.y(y)) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places),
    ]


def _legend(name: str, colour: str, x: float) -> list[str]:
    mark = f'<rect x="{x}" y="{HEIGHT - 24}" width="12" height="12" fill="{colour}"/>'
    return [mark, _text(x + 18, HEIGHT - 14, name, anchor="start")]
