"""How many processors this process may keep busy.

A container is seldom given processors of its own: it is given time on all of them. Threads by the
number of processors would then use up the time of a period at once and be stopped for the rest
of it, all together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOUNT_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """A tree of control groups that can limit processor time."""

    mounted_root: str
    """The group that the mount point shows, as groups are named in ``/proc/self/cgroup``."""
    mount_point: str
    is_unified: bool
    """Version 2; else the hierarchy of version 1 that has the controller ``cpu``."""


def usable_processors(root: Path = Path("/")) -> int:
    """Processors that this process may run on, or the time it is granted where that is less.

    A fraction of a processor is rounded down; 1 at least. ``root`` is where ``/proc`` and the
    control groups are.
    """
    runs_on = len(os.sched_getaffinity(0))
    granted = min(_granted_processors(root), default=float(runs_on))
    return max(1, min(runs_on, int(granted)))


def _granted_processors(root: Path) -> Iterator[float]:
    """The limit of each group that this process is in, from its own up, where it has one."""
    mounted = _hierarchies(_read(root / "proc/self/mountinfo"))
    hierarchies = {each.is_unified: each for each in mounted}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        hierarchy = hierarchies.get(not controllers)
        if hierarchy is None:
            continue
        for folder in _folders(root, hierarchy, group):
            limit = _unified_limit(folder) if hierarchy.is_unified else _first_limit(folder)
            if limit is not None:
                yield limit


def _hierarchies(mountinfo: str) -> Iterator[_Hierarchy]:
    """Those that are mounted; proc(5) has the format."""
    for line in mountinfo.splitlines():
        place, _, kind = line.partition(" - ")
        file_system, _, options = kind.partition(" ")
        mounted_root, mount_point = map(_unescaped, place.split()[3:5])
        if file_system == "cgroup2":
            yield _Hierarchy(mounted_root, mount_point, True)
        elif file_system == "cgroup" and "cpu" in options.split()[-1].split(","):
            yield _Hierarchy(mounted_root, mount_point, False)


def _unescaped(path: str) -> str:
    for escape, character in _MOUNT_ESCAPES.items():
        path = path.replace(escape, character)
    return path


def _folders(root: Path, hierarchy: _Hierarchy, group: str) -> Iterator[Path]:
    """The folder of a group, and of each group around it that is visible here."""
    top = root / hierarchy.mount_point.lstrip("/")
    try:
        inside = Path(group).relative_to(hierarchy.mounted_root)
    except ValueError:
        # Named from another place than what is mounted; the mount shows at least its own limit.
        inside = Path()
    folder = top / inside
    while folder != top:
        yield folder
        folder = folder.parent
    yield top


def _unified_limit(folder: Path) -> float | None:
    """Of ``cpu.max``: microseconds or "max", and the period."""
    match _read(folder / "cpu.max").split():
        case [quota, period] if quota.isdecimal() and int(period) > 0:
            return int(quota) / int(period)
    return None


def _first_limit(folder: Path) -> float | None:
    """Of the two files of version 1; -1 is no limit."""
    quota = _read(folder / "cpu.cfs_quota_us").strip()
    period = _read(folder / "cpu.cfs_period_us").strip()
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        return int(quota) / int(period)
    return None


def _read(path: Path) -> str:
    """A file's text; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
