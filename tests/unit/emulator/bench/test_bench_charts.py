from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from emulator.bench.charts import SWEEPS, Curves, Point, Sweep, run
from emulator.bench.transfer import Size


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
