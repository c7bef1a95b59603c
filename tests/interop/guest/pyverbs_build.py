"""rdma-core with its Python binding, built from the source distribution for the guest.

Debian's pyverbs is too old for the tests that the distribution carries. Takes some minutes, a C
compiler, cmake, ninja and the headers of libnl; done once, and kept.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance import sdist
from tests.interop.guest.packages import GuestError

CYTHON = "cython==3.0.12"
NEEDED = ("cc", "cmake", "ninja", "pkg-config")
APT = "build-essential cmake ninja-build pkg-config libnl-3-dev libnl-route-3-dev"
_LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class PyverbsBuild:
    """Where it is; nothing is installed."""

    folder: Path

    @property
    def python_path(self) -> Path:
        """For PYTHONPATH."""
        return self.folder / "build/python"

    @property
    def library_path(self) -> Path:
        """For LD_LIBRARY_PATH."""
        return self.folder / "build/lib"

    @property
    def tests(self) -> Path:
        """The upstream tests, away from the sources, whose folders would hide what was built."""
        return self.folder.parents[1] / "alone/tests"


def obtain(cache: Path) -> PyverbsBuild:
    """The build for this interpreter, from the cache or made now.

    Raises GuestError when a tool is missing or the build fails, SdistError without sources.
    """
    root = cache / f"pyverbs-{sys.implementation.cache_tag}"
    made = PyverbsBuild(root / sdist.TESTS.parent)
    stamp = root / "complete"
    if stamp.is_file():
        return made
    missing = [tool for tool in NEEDED if shutil.which(tool) is None]
    if missing:
        raise GuestError(f"{', '.join(missing)} missing: apt-get install {APT}")
    archive = sdist.obtain(sdist.cache_folder())
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    _unpack(archive, root)
    sdist.unpack_tests(archive, root / "alone")
    cython = _cython(root / "cython")
    build = made.folder / "build"
    build.mkdir()
    log = root / "build.log"
    # The interpreter that has Cython: otherwise the binding is left out without a word.
    tools = (f"PYTHON_EXECUTABLE={cython / 'python'}", f"CYTHON_EXECUTABLE={cython / 'cython'}")
    defines = [f"-D{each}" for each in ("IN_PLACE=1", "NO_MAN_PAGES=1", *tools)]
    print(f"building rdma-core once; its log: {log}", flush=True)
    _run(["cmake", "-GNinja", *defines, ".."], build, log)
    _run(["ninja"], build, log)
    if not made.python_path.is_dir():
        raise GuestError(f"rdma-core was built without its Python binding; see {log}")
    stamp.touch()
    return made


def _unpack(archive: Path, root: Path) -> None:
    """All of it, whose checksum is pinned; sizes and links are as upstream made them."""
    with tarfile.open(archive, "r:gz") as archived:
        if hasattr(tarfile, "data_filter"):
            archived.extractall(root, filter="data")
        else:
            archived.extractall(root)


def _cython(folder: Path) -> Path:
    """A virtual environment with the compiler of the binding; its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q", CYTHON]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GuestError(f"pip cannot install {CYTHON}: {done.stderr.strip()[-400:]}")
    return folder / "bin"


def _run(command: Sequence[str], folder: Path, log: Path) -> None:
    with log.open("ab") as out:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        )
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        raise GuestError(f"{command[0]} failed (it may need {APT}):\n{tail}")
