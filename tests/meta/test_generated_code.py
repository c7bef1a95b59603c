"""The generated code of the control API is fresh, importable and well formed."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.requirements import lacking

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("kvlane/control/v1")
GENERATED = ("control_pb2.py", "control_pb2.pyi", "control_pb2_grpc.py")


def pyproject_version(pattern: str) -> str:
    found = re.search(pattern, (ROOT / "pyproject.toml").read_text())
    assert found is not None, f"pyproject.toml has nothing like {pattern}"
    return found[1]


def as_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_committed_code_is_what_the_generator_writes(tmp_path: Path) -> None:
    pinned = pyproject_version(r'"grpcio-tools==([\d.]+)"')
    if version("grpcio-tools") != pinned:
        lacking(f"grpcio-tools is {version('grpcio-tools')}; install grpcio-tools=={pinned}")
    subprocess.run([sys.executable, ROOT / "scripts/genproto", tmp_path], check=True)
    for name in GENERATED:
        fresh = (tmp_path / PACKAGE / name).read_text()
        committed = (ROOT / "proto" / PACKAGE / name).read_text()
        assert committed == fresh, f"{PACKAGE / name} is stale: run scripts/genproto"


@pytest.mark.parametrize(
    ("package", "file", "pattern"),
    [
        ("protobuf", "control_pb2.py", r"# Protobuf Python Version: ([\d.]+)"),
        ("grpcio", "control_pb2_grpc.py", r"GRPC_GENERATED_VERSION = '([\d.]+)'"),
    ],
)
def test_oldest_runtime_allowed_can_import_the_code(package: str, file: str, pattern: str) -> None:
    """Generated code refuses, at import, a runtime older than its generator."""
    found = re.search(pattern, (ROOT / "proto" / PACKAGE / file).read_text())
    assert found is not None
    oldest = pyproject_version(rf'"{package}>=([\d.]+)"')
    assert as_numbers(oldest) >= as_numbers(found[1]), (
        f"pyproject.toml allows {package} {oldest}, but {file} needs {found[1]}"
    )


def test_buf_lint_is_clean() -> None:
    buf = Path(sysconfig.get_path("scripts")) / "buf"
    done = subprocess.run([buf, "lint"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
