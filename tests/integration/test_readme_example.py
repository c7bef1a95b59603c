"""The Python example of README.md runs exactly as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.repository import ROOT, run_python


def test_readme_example_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks) == 1
    assert "assert" in blocks[0]
    result = run_python(["-c", blocks[0]], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
