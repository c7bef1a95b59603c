"""Charts: a line for every series, values where they belong, nothing from outside unescaped."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlane.report.axes import Axis, axis_from_zero, tick_text
from kvlane.report.line_chart import HEIGHT, WIDTH, Chart, Line, as_figure, as_svg, styles

SVG = "{http://www.w3.org/2000/svg}"


def chart(*lines: Line, **more: object) -> Chart:
    about = {"title": "a < b", "x_name": "x", "y_name": "y", "lines": lines, "x_is_log": True}
    return Chart(**{**about, **more})  # type: ignore[arg-type]


def test_a_chart_has_a_line_for_every_series_and_a_mark_for_every_point() -> None:
    lines = (Line("one", [(1, 0), (8, 3)]), Line("two & <three>", [(4, 1)]))
    root = ElementTree.fromstring(as_svg(chart(*lines, x_labels={1: "1", 8: "8"})))
    assert len(root.findall(f"{SVG}polyline")) == 2
    assert len(root.findall(f"{SVG}circle")) == 3
    texts = [text.text for text in root.findall(f"{SVG}text")]
    for wanted in ("a < b", "one", "two & <three>", "1", "8", "x", "y"):
        assert wanted in texts


def test_x_doubles_at_equal_distances_and_higher_is_further_up() -> None:
    root = ElementTree.fromstring(as_svg(chart(Line("one", [(1, 0), (2, 1), (4, 2), (8, 3)]))))
    places = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter(f"{SVG}circle")]
    steps = [after[0] - before[0] for before, after in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert all(after[1] < before[1] for before, after in pairwise(places))
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)


@pytest.mark.parametrize("lines", [(), (Line("none", []),), (Line("flat", [(1, 0.0)]),)])
def test_a_chart_of_nothing_is_still_a_chart(lines: tuple[Line, ...]) -> None:
    ElementTree.fromstring(as_svg(chart(*lines, label_ends=True)))
    ElementTree.fromstring(as_figure(chart(*lines)))


def test_labels_at_the_ends_of_lines_do_not_lie_on_each_other() -> None:
    lines = [Line(f"line {number}", [(1, 0.0), (2, 1 + number / 100)]) for number in range(15)]
    root = ElementTree.fromstring(as_figure(chart(*lines, label_ends=True)))
    labels = [text for text in root.findall("text") if (text.text or "").startswith("line ")]
    places = sorted(float(label.get("y", "")) for label in labels)
    assert len(places) == len(lines)
    assert all(after - before >= 12.9 for before, after in pairwise(places))
    assert places[0] > 0
    assert places[-1] < HEIGHT


def test_no_two_lines_of_many_look_the_same() -> None:
    lines = [Line(str(number), [], is_bound=number < 2) for number in range(18)]
    drawn = [(style.colour, style.dash) for style in styles(lines)]
    assert len(set(drawn)) == len(lines)


@given(high=st.floats(1e-6, 1e12), is_log=st.booleans(), part=st.floats(1e-6, 0.999))
def test_ticks_lie_within_the_axis_in_order(high: float, is_log: bool, part: float) -> None:
    axis = Axis(high * part, high, is_log)
    ticks = axis.ticks()
    assert ticks == sorted(ticks)
    assert 1 <= len(ticks) <= 8
    assert all(-0.01 <= axis.share(tick) <= 1.01 for tick in ticks)


@given(values=st.lists(st.floats(0, 1e12), max_size=5))
def test_an_axis_from_zero_holds_all_values_and_little_more(values: list[float]) -> None:
    axis = axis_from_zero(values)
    most = max(values, default=0.0)
    assert axis.low == 0
    assert axis.high >= most * 0.999
    assert axis.high <= max(2 * most, 1.0)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.05, "0.05"), (2500, "2.5k"), (1e7, "10M"), (-3e9, "-3G")]
)
def test_ticks_are_short(value: float, text: str) -> None:
    assert tick_text(value) == text
