"""The repository as the meta tests see it: its files, its packages, and Python beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = (ROOT, ROOT / "proto")
PACKAGES = {
    "kvlane": ROOT / "proto" / "kvlane",
    "dpu_agent": ROOT / "dpu_agent",
    "host_driver": ROOT / "host_driver",
    "emulator": ROOT / "emulator",
}


@lru_cache(maxsize=1)
def listed_files() -> tuple[Path, ...]:
    """Files that git tracks or would track: nothing ignored, nothing deleted."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    command += ["--cached", "--others", "--exclude-standard"]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    paths = (ROOT / name for name in out.decode().split("\0") if name)
    return tuple(sorted(path for path in paths if path.is_file()))


def relative(path: Path) -> str:
    """A path as it is written in the repository."""
    return path.relative_to(ROOT).as_posix()


def is_generated(path: Path) -> bool:
    """True for what scripts/genproto writes."""
    return "_pb2" in path.name


def python_files() -> list[Path]:
    """Every Python file that people write."""
    return [path for path in listed_files() if path.suffix == ".py" and not is_generated(path)]


def package_files() -> list[Path]:
    """Every Python file that people write and the wheel ships."""
    return [
        path
        for path in python_files()
        if any(path.is_relative_to(folder) for folder in PACKAGES.values())
    ]


def module_name(path: Path) -> str:
    """The dotted name under which a file of our packages is imported."""
    root = ROOT / "proto" if path.is_relative_to(ROOT / "proto") else ROOT
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def copy_listed(destination: Path, names: Sequence[str]) -> None:
    """Copy the listed files whose path begins with one of ``names``, keeping the tree."""
    for path in listed_files():
        name = relative(path)
        if any(name == wanted or name.startswith(f"{wanted}/") for wanted in names):
            target = destination / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())


def run_python(
    args: Sequence[str],
    *,
    cwd: Path,
    search: Sequence[Path] = SOURCE_ROOTS,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with ``search`` before everything that is installed."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(path) for path in search),
        "PYTHONDONTWRITEBYTECODE": "1",
        **(env or {}),
    }
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
