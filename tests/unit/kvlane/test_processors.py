"""Processors that may be used: those that the process runs on, and what its groups grant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvlane.processors import usable_processors

UNIFIED = "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
FIRST = "31 24 0:26 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
OTHER = "32 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
PERIOD_US = 100_000


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 16."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def place(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def machine(root: Path, mounts: str, groups: str) -> Path:
    place(root, "proc/self/mountinfo", mounts)
    place(root, "proc/self/cgroup", groups)
    return root


def grant_unified(root: Path, group: str, quota: str) -> None:
    place(root, f"sys/fs/cgroup/{group}/cpu.max", f"{quota} {PERIOD_US}\n")


def grant_first(root: Path, group: str, quota_us: int) -> None:
    folder = f"sys/fs/cgroup/cpu,cpuacct/{group}"
    place(root, f"{folder}/cpu.cfs_quota_us", f"{quota_us}\n")
    place(root, f"{folder}/cpu.cfs_period_us", f"{PERIOD_US}\n")


def test_without_groups_it_is_where_the_process_may_run(tmp_path: Path) -> None:
    assert usable_processors(tmp_path) == 16


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max", 16), ("400000", 4), ("390000", 3), ("50000", 1), ("9900000", 16), ("what", 16)],
)
def test_a_quota_of_version_2(quota: str, expected: int, tmp_path: Path) -> None:
    machine(tmp_path, OTHER + UNIFIED, "0::/\n")
    grant_unified(tmp_path, "", quota)
    assert usable_processors(tmp_path) == expected


@pytest.mark.parametrize(("quota_us", "expected"), [(-1, 16), (250_000, 2), (10_000, 1)])
def test_a_quota_of_version_1(quota_us: int, expected: int, tmp_path: Path) -> None:
    machine(tmp_path, OTHER + FIRST.format(root="/"), "7:memory:/a\n4:cpu,cpuacct:/pod/agent\n")
    grant_first(tmp_path, "pod/agent", quota_us)
    assert usable_processors(tmp_path) == expected


def test_the_smallest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    machine(tmp_path, UNIFIED, "0::/system.slice/agent.service\n")
    grant_unified(tmp_path, "system.slice/agent.service", "800000")
    grant_unified(tmp_path, "system.slice", "600000")
    grant_unified(tmp_path, "another.slice", "100000")
    assert usable_processors(tmp_path) == 6


def test_a_container_sees_its_own_group_at_the_mount_point(tmp_path: Path) -> None:
    machine(tmp_path, FIRST.format(root="/docker/1234"), "4:cpu,cpuacct:/docker/1234\n")
    grant_first(tmp_path, "", 300_000)
    assert usable_processors(tmp_path) == 3


def test_a_group_named_from_elsewhere_has_at_least_the_limit_of_the_mount(tmp_path: Path) -> None:
    machine(tmp_path, UNIFIED.replace(" / ", " /pod ", 1), "0::/../other\n")
    grant_unified(tmp_path, "", "200000")
    assert usable_processors(tmp_path) == 2


def test_both_versions_at_once(tmp_path: Path) -> None:
    machine(tmp_path, FIRST.format(root="/") + UNIFIED, "4:cpu,cpuacct:/\n0::/\n")
    grant_first(tmp_path, "", 500_000)
    assert usable_processors(tmp_path) == 5


def test_this_machine_has_at_least_one() -> None:
    assert 1 <= usable_processors() <= 16
