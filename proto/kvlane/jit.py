"""The one place that decides how kernels are compiled, and where the result is kept.

A kernel is a function with scalar, record and array arguments that runs compiled and
without the GIL, or, with ``NUMBA_DISABLE_JIT=1``, as the plain Python it is written in.

Numba checks a cached kernel against the source of its own file only, not against the
files whose kernels it inlined. So the cache lives in a folder named after a digest of
all kernel sources and of what they import: an edit anywhere starts a new folder, never
a stale mixture.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import types

F = TypeVar("F", bound=Callable[..., Any])

JIT_ENABLED: bool = not numba.config.DISABLE_JIT
"""False under ``NUMBA_DISABLE_JIT=1``: kernels then run as plain Python."""

_KEEP_UNUSED_S = 30 * 86_400
_PACKAGES = ("kvlane", "dpu_agent", "host_driver", "emulator")


_IMPORT = re.compile(rb"^(?:from|import) ([a-z_.]+)", re.MULTILINE)


def _package_roots() -> list[Path]:
    """The folders of our packages that are installed, wherever they are."""
    roots: list[Path] = []
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            roots += (Path(location) for location in spec.submodule_search_locations)
    return roots


def _module_file(name: str, roots: list[Path]) -> Path | None:
    """The source file of one of our modules, without importing it."""
    first, *rest = name.split(".")
    for root in roots:
        if root.name == first:
            path = root.joinpath(*rest)
            return next(
                (f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None
            )
    return None


def _kernel_sources() -> list[Path]:
    """Kernel modules and all that they import: constants too are compiled in."""
    roots = _package_roots()
    pending = [path for root in roots for path in root.rglob("*kernels.py")]
    pending += [Path(__file__), Path(__file__).with_name("rawmem.py")]
    found: set[Path] = set()
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found.add(path)
        for name in _IMPORT.findall(path.read_bytes()):
            imported = _module_file(name.decode(), roots)
            if imported is not None:
                pending.append(imported)
    return sorted(found)


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "none"


def _digest() -> str:
    digest = hashlib.sha256()
    # What a kernel calls is compiled in by name: with another CRC it is another kernel.
    parts = (numba.__version__, platform.python_version(), platform.machine(), _version_of("isal"))
    for part in parts:
        digest.update(part.encode() + b"\0")
    for path in _kernel_sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_root() -> Path:
    """``KVLANE_CACHE_DIR``, else the XDG cache folder, else a private temporary folder."""
    named = os.environ.get("KVLANE_CACHE_DIR")
    if named:
        return Path(named)
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "kvlane"


def _open_cache_dir() -> Path:
    name = f"kernels-{_digest()}"
    try:
        path = _cache_root() / name
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            os.utime(path)
        _forget_unused(path)
        return path
    except (OSError, RuntimeError):
        # A service user may have no home, or a read-only one. The folder is made by us
        # and readable by us alone, so nobody else can plant compiled code in it.
        path = Path(tempfile.mkdtemp(prefix=f"kvlane-{name}-"))
        atexit.register(shutil.rmtree, path, ignore_errors=True)
        return path


def _forget_unused(current: Path) -> None:
    """Remove the folders of other versions that nobody has opened for a long time."""
    oldest = current.stat().st_mtime - _KEEP_UNUSED_S
    for folder in current.parent.glob("kernels-*"):
        with contextlib.suppress(OSError):
            if folder != current and folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)


CACHE_DIR: Path = _open_cache_dir()
"""Where compiled kernels are kept between runs."""

_folder_gate = threading.RLock()


def is_warm(warm_up: str) -> bool:
    """True when an earlier run has been through ``warm_up``, so that it need not compile now.

    Some compiled kernels prove nothing: that run may have been stopped before the last one.
    """
    return not JIT_ENABLED or _warm_marker(warm_up).exists()


def mark_warm(warm_up: str) -> None:
    """Note that all kernels that ``warm_up`` uses are compiled, each stored as it was.

    A disk that takes no note costs the next run a needless message and nothing else.
    """
    if JIT_ENABLED:
        with contextlib.suppress(OSError):
            _warm_marker(warm_up).touch()


def _warm_marker(warm_up: str) -> Path:
    return CACHE_DIR / f"{warm_up}.warm"


def kernel(function: F) -> F:
    """Compile ``function`` under the project's policy: no GIL, cached, C's arithmetic."""
    with _our_folder():
        compiled: F = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    _save_one_at_a_time(compiled)
    return compiled


@contextlib.contextmanager
def _our_folder() -> Iterator[None]:
    """Caching that is set up in here goes to our folder.

    The setting belongs to the process, whose other kernels are none of our business, so it
    is given back at once; and to one of its threads at a time, or what one gives back another
    would lose.
    """
    with _folder_gate:
        theirs = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(CACHE_DIR)
        try:
            yield
        finally:
            numba.config.CACHE_DIR = theirs


@contextlib.contextmanager
def cached_in_our_folder(compiled: Any) -> Iterator[None]:
    """For what numba compiles otherwise than by ``kernel``: set up its caching in here."""
    with _our_folder():
        yield
    _save_one_at_a_time(compiled)


def _save_one_at_a_time(compiled: Any) -> None:
    """Keep other processes out while a compiled kernel is stored.

    Numba reads an index, takes the next free number for a file, and writes both. Two processes
    that do so at once for kernels of one name, such as closures of one function, give both the
    same number: the index then leads to another kernel's machine code, for good.
    """
    cache = getattr(compiled, "_cache", None)
    if not JIT_ENABLED or cache is None:
        return
    save = cache.save_overload

    def save_alone(signature: Any, data: Any) -> None:
        with _store_locked():
            save(signature, data)

    cache.save_overload = save_alone


@contextlib.contextmanager
def _store_locked() -> Iterator[None]:
    """The folder of kernels, for this process alone; a folder that takes no lock is not written
    either."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            lock = held.enter_context((CACHE_DIR / "store.lock").open("ab"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


_CTYPES = {
    types.int32: ctypes.c_int32,
    types.uint32: ctypes.c_uint32,
    types.int64: ctypes.c_int64,
    types.uint64: ctypes.c_uint64,
}


def external(symbol: str, signature: Any, address: int | None = None) -> Callable[..., int]:
    """A C function that kernels may call: ``external("memmove", int64(int64, int64, int64))``.

    Kernels that call it stay cacheable, because the symbol is resolved by name when the
    machine code is loaded; ``address`` names one that the process does not export.
    """
    if address is not None:
        import llvmlite.binding as llvm

        llvm.add_symbol(symbol, address)
    if JIT_ENABLED:
        external_function: Callable[..., int] = types.ExternalFunction(symbol, signature)
        return external_function
    prototype = ctypes.CFUNCTYPE(
        _CTYPES[signature.return_type], *(_CTYPES[arg] for arg in signature.args)
    )
    if address is not None:
        return prototype(address)
    return prototype((symbol, ctypes.CDLL(None)))
