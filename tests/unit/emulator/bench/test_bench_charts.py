from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest

from emulator.bench.charts import SWEEPS, Curves, Point, Sweep, run
from emulator.bench.svg_chart import HEIGHT, WIDTH, Chart, as_svg
from emulator.bench.transfer import Size

SVG = "{http://www.w3.org/2000/svg}"


def _point(sweep: Sweep, link: str, size: Size) -> Point:
    return Point(
        sweep=sweep.name,
        link=link,
        block_bytes=size.block_bytes,
        depth=size.depth,
        label=sweep.label(size),
        retrieve=2.0,
        store=1.0,
        limit=4.0,
        limit_name="some limit",
    )


def _curves() -> Curves:
    return Curves(
        [
            _point(sweep, link, size)
            for sweep in SWEEPS
            for link in ("pcie", "udp")
            for size in sweep.sizes
        ]
    )


def _chart(series: dict[str, list[tuple[float, float]]]) -> Chart:
    return Chart("a < b", "x", "y", series, {1: "1", 8: "8"})


def test_a_chart_has_a_line_for_every_series_and_a_mark_for_every_point() -> None:
    root = ElementTree.fromstring(as_svg(_chart({"one": [(1, 0), (8, 3)], "two": [(4, 1)]})))
    assert len(root.findall(f"{SVG}polyline")) == 2
    assert len(root.findall(f"{SVG}circle")) == 3
    texts = [text.text for text in root.findall(f"{SVG}text")]
    for wanted in ("a < b", "one", "two", "1", "8", "x", "y"):
        assert wanted in texts


def test_x_doubles_at_equal_distances_and_higher_is_further_up() -> None:
    root = ElementTree.fromstring(as_svg(_chart({"one": [(1, 0), (2, 1), (4, 2), (8, 3)]})))
    places = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter(f"{SVG}circle")]
    steps = [after[0] - before[0] for before, after in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert all(after[1] < before[1] for before, after in pairwise(places))
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)


def test_a_chart_of_nothing_but_zero_is_still_a_chart() -> None:
    ElementTree.fromstring(as_svg(_chart({"flat": [(1, 0.0)]})))


def test_sweeps_cover_what_they_promise() -> None:
    blocks, depths = SWEEPS
    assert [size.block_bytes for size in blocks.sizes] == [
        4096 << shift for shift in range(0, 12, 2)
    ]
    assert [size.depth for size in depths.sizes] == [1, 2, 4, 8, 16, 32, 64]
    for sweep in SWEEPS:
        for size in sweep.sizes:
            assert size.stored % size.depth == 0
            assert size.turn_bytes >= 256 << 20


def test_every_sweep_and_link_has_a_file(tmp_path: Path) -> None:
    written = _curves().write_svg(tmp_path / "charts")
    assert sorted(path.name for path in written) == [
        "block-size-pcie.svg",
        "block-size-udp.svg",
        "queue-depth-pcie.svg",
        "queue-depth-udp.svg",
    ]
    for path in written:
        ElementTree.fromstring(path.read_text())


def test_all_forms_have_every_point() -> None:
    curves = _curves()
    count = len(curves.points)
    assert len(json.loads(curves.as_json())["points"]) == count
    assert curves.as_markdown().count("| some limit |") == count
    text = curves.as_text()
    assert text.count("█ 2") == text.count("█ 1") == count
    assert "256 KiB" in text


def test_a_small_sweep_is_measured_over_both_links() -> None:
    size = Size(block_bytes=16384, depth=2, stored=4, repeat=1)
    sweep = Sweep("block-size", "bytes", (size,), lambda size: size.block_bytes, lambda _: "16 KiB")
    points = run(1, lambda _: None, (sweep,)).points
    assert [point.link for point in points] == ["pcie", "udp"]
    assert all(min(point.retrieve, point.store, point.limit) > 0 for point in points)
