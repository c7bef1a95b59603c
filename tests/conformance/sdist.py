"""The source distribution that the upstream tests come in: fetched once, checked, unpacked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

REQUIREMENT = "pyverbs==59.0"
FILE_NAME = "pyverbs-59.0.tar.gz"
SHA256 = "b30d56bb620b3d3b4301876f9a04c964be1c76cc6553a451e1465f1c6ac9f20e"
TESTS = PurePosixPath("pyverbs-59.0/rdma-core/tests")
"""The folder of the tests inside the archive."""

FETCH_TIMEOUT_S = 300

Fetch = Callable[[Path], None]
"""Puts the file called FILE_NAME into a folder."""


class SdistError(Exception):
    """The source distribution could not be had, or is not the one that was pinned."""


def cache_folder() -> Path:
    """``XDG_CACHE_HOME``, else ``~/.cache``, and below it a folder of our own."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "kvlane" / "conformance"


def unearth(folder: Path) -> None:
    """Download the file with unearth, which does not build metadata as pip does."""
    command = [sys.executable, "-m", "unearth", "--no-binary", "--download", str(folder)]
    done = subprocess.run(
        [*command, REQUIREMENT],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise SdistError(f"unearth did not get {REQUIREMENT}: {done.stderr.strip()[-800:]}")


def obtain(cache: Path, fetch: Fetch = unearth, sha256: str = SHA256) -> Path:
    """Path of the checked archive, from the cache or fetched into it.

    Raises SdistError when the archive cannot be had or has another checksum; such a file is
    not kept.
    """
    kept = cache / FILE_NAME
    if kept.is_file() and _digest(kept) == sha256:
        return kept
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as fresh:
        fetch(Path(fresh))
        got = Path(fresh) / FILE_NAME
        if not got.is_file():
            raise SdistError(f"{FILE_NAME} was not fetched: {sorted(os.listdir(fresh))}")
        digest = _digest(got)
        if digest != sha256:
            raise SdistError(f"{FILE_NAME} has SHA-256 {digest}; pinned is {sha256}: refused")
        got.replace(kept)
    return kept


def unpack_tests(archive: Path, destination: Path, folder: PurePosixPath = TESTS) -> Path:
    """Write the regular files below ``folder`` to ``destination/tests``; that path.

    Nothing else of the archive is written: no link, no device, no name that climbs out.
    """
    target = destination / "tests"
    with tarfile.open(archive, "r:gz") as archived:
        for member in archived:
            path = PurePosixPath(member.name)
            if not member.isreg() or ".." in path.parts or not path.is_relative_to(folder):
                continue
            source = archived.extractfile(member)
            if source is None:
                continue
            place = target / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(source.read())
    if not target.is_dir():
        raise SdistError(f"{archive.name} has no files in {folder}")
    return target


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
