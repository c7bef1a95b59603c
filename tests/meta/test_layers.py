"""import-linter keeps the floors apart and the cores sans-IO, and it would notice a breach."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.repository import PACKAGES, ROOT, copy_listed, run_python

LINT = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"


def lint(folder: Path) -> tuple[int, str]:
    """Exit code and report of import-linter over the packages in ``folder``."""
    result = run_python(["-c", LINT], cwd=folder, search=(folder, folder / "proto"))
    return result.returncode, result.stdout + result.stderr


def test_every_contract_is_kept() -> None:
    code, report = lint(ROOT)
    assert code == 0, report
    assert " 0 broken" in report


@pytest.mark.parametrize(
    ("module", "line", "shown"),
    [
        ("host_driver/breach.py", "import dpu_agent.control.core", "host_driver.breach"),
        ("dpu_agent/breach.py", "import emulator.link.frames", "dpu_agent.breach"),
        ("proto/kvlane/breach.py", "import host_driver", "kvlane.breach"),
        ("host_driver/breach.py", "import kvlane.hardware.device", "host_driver.breach"),
        ("emulator/breach.py", "import pyverbs.cq", "emulator.breach"),
        ("emulator/wire/breach.py", "import time", "emulator.wire.breach"),
        ("dpu_agent/cache/breach.py", "import random", "dpu_agent.cache.breach"),
    ],
)
def test_a_breach_is_reported(tmp_path: Path, module: str, line: str, shown: str) -> None:
    folders = [folder.relative_to(ROOT).as_posix() for folder in PACKAGES.values()]
    copy_listed(tmp_path, ["pyproject.toml", *folders])
    (tmp_path / module).write_text(f'"""A forbidden import."""\n\n{line}\n')
    code, report = lint(tmp_path)
    assert code == 1, report
    assert shown in report
