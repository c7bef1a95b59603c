"""``kvlane replay`` against an agent with files below memory: what left comes back, and right."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.html_page import PageReader
from tests.support.repository import ROOT, run_python

BLOCK_BYTES = 512
REQUESTS = 80


def test_blocks_come_back_from_files_and_the_report_says_so(tmp_path: Path) -> None:
    folder, report = tmp_path / "tier", tmp_path / "report.html"
    folder.mkdir()
    command = ["-m", "host_driver.cli.main", "replay", f"--requests={REQUESTS}", "--json"]
    command += [f"--block-bytes={BLOCK_BYTES}", "--concurrency=1", f"--report={report}"]
    command += ["--tier=dram=64KiB", f"--tier=nvme=16MiB:{folder}", "--policy=reuse"]
    done = run_python(command, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["mode"] == "real"
    assert said["verification_errors"] == 0
    assert said["blocks_stored"] > 64 * 1024 // BLOCK_BYTES
    assert said["tier_counters"]["nvme_demoted"] > 0
    assert said["tier_counters"]["nvme_promoted"] > 0
    assert 0 < said["tokens"]["saved"] < said["tokens"]["asked"]
    assert sum(said["windows"]["blocks_asked"]) == said["blocks_asked"]
    assert sum(said["windows"]["blocks_hit"]) == said["blocks_hit"]
    reader = PageReader(report.read_text())
    assert reader.fetched == []
    assert "nvme_promoted" in reader.text
