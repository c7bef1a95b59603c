"""The Python example of README.md runs exactly as it is printed, and is as short as it says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.repository import ROOT, run_python

README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)


def test_readme_example_runs(tmp_path: Path) -> None:
    (example,) = EXAMPLES
    assert "assert" in example
    result = run_python(["-c", example], cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_readme_example_has_the_ten_lines_that_its_title_says() -> None:
    assert "## The driver in ten lines" in README
    (example,) = EXAMPLES
    code = [line for line in example.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(code) == 10
