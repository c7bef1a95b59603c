"""What is shipped: four names and nothing else, and it lives beside proto-plus."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import files
from pathlib import Path

import pytest

from tests.support.repository import PACKAGES, copy_listed, run_python

SOURCES = ["pyproject.toml", "README.md", "LICENSE", "proto"]
SOURCES += ["dpu_agent", "host_driver", "emulator", "tests", "deploy", "benchmarks"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist of a copy of the sources, and the wheel built from that sdist."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    copy_listed(source, SOURCES)
    args = ["-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    result = run_python(args, cwd=source, search=())
    assert result.returncode == 0, result.stdout + result.stderr
    return out


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed in one folder with proto-plus, as a site-packages would hold both."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--target", str(target), *map(str, dist.glob("*.whl"))]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=120)
    for file in files("proto-plus") or []:
        if file.suffix == ".py":
            copy = target / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_binary())
    return target


def test_wheel_holds_exactly_the_four_packages(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.split("/")[0] for name in names}
    assert {name for name in tops if not name.endswith(".dist-info")} == set(PACKAGES)
    assert len(tops) == len(PACKAGES) + 1
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert "kvlane/control/v1/control.proto" in names
    assert "dpu_agent/planning/profiles/llama-3-70b-fp16.yaml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_sdist_can_build_everything_and_no_tests_are_in_it(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names
    assert "proto/kvlane/control/v1/control.proto" in names
    assert not [name for name in names if name.startswith(("tests/", "deploy/", "benchmarks/"))]


CODE = """
import proto
class Point(proto.Message):
    x = proto.Field(proto.INT32, number=1)
assert Point.deserialize(Point.serialize(Point(x=7))).x == 7
import kvlane, dpu_agent, emulator, host_driver
from kvlane.control.v1 import control_pb2
assert control_pb2.Version(major=1).major == 1
print(proto.__file__, *(m.__file__ for m in (kvlane, dpu_agent, emulator, host_driver)))
"""


def test_installed_wheel_and_proto_plus_work_together(installed: Path, tmp_path: Path) -> None:
    env = {"KVLANE_CACHE_DIR": str(tmp_path)}
    result = run_python(["-c", CODE], cwd=tmp_path, search=(installed,), env=env)
    assert result.returncode == 0, result.stderr
    folders = {Path(name).parent.parent for name in result.stdout.split()}
    assert folders == {installed}


def test_installed_command_answers(installed: Path, tmp_path: Path) -> None:
    code = "from host_driver.cli.main import main; main(['--help'])"
    env = {"KVLANE_CACHE_DIR": str(tmp_path)}
    result = run_python(["-c", code], cwd=tmp_path, search=(installed,), env=env)
    assert result.returncode == 0, result.stderr
    assert "agent" in result.stdout
