"""The committed drawing of a queue pair's states is what its script draws."""

from __future__ import annotations

from pathlib import Path

from tests.support.repository import ROOT, run_python


def test_the_page_is_fresh(tmp_path: Path) -> None:
    fresh = tmp_path / "qp-states.md"
    done = run_python([str(ROOT / "scripts" / "draw-qp-states"), str(fresh)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    committed = (ROOT / "docs" / "qp-states.md").read_text()
    assert committed == fresh.read_text(), "stale: run scripts/draw-qp-states"
