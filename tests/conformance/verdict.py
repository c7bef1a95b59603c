"""Says whether a run is good enough: what may be skipped, and how much must pass."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tests.conformance.runner import FAILED, PASSED, SKIPPED, ModuleRun
from tests.conformance.suite import FLOOR, TOTAL


@dataclass(frozen=True)
class AllowedSkip:
    """A reason for which a test may be skipped."""

    name: str
    reason: str
    """Pattern that the whole reason must match."""
    why: str
    tests: str
    """Pattern of the tests that may give it: a reason alone often says too little."""


ALLOWED_SKIPS = (
    AllowedSkip(
        "XRC",
        r"Create XRCD is not supported",
        "extended reliable connections, which the device does not have",
        tests=r".*xrc.*",
    ),
    AllowedSkip(
        "dma-buf",
        r"Allocating dmabuf is not supported by /dev/dri/renderD\d+",
        "memory of a GPU, which has no meaning in software",
        tests=r"DmaBuf.*",
    ),
    AllowedSkip(
        "raw packet",
        r"Create Raw Packet QP with.* is not supported"
        r"|To Create RAW QP must be done by root on Ethernet link layer",
        "Ethernet frames that bypass the transport, which the device does not have",
        tests=r"QPTest\.\w*_raw_\w+",
    ),
    AllowedSkip(
        "multicast",
        r"Multicast is not supported on this device",
        "multicast groups, which the device does not have",
        tests=r"CMTestCase\.\w*multicast\w*",
    ),
    AllowedSkip(
        "huge pages",
        r"Huge pages of size 2M is not supported in this platform"
        r"|There are no huge pages of size 2M allocated",
        "a setting of the machine, not of the device",
        tests=r"ParentDomainTrafficTest\.test_huge_page_traffic",
    ),
)


@dataclass(frozen=True)
class Count:
    """Numbers of tests."""

    passed: int
    failed: int
    skipped: int

    @property
    def total(self) -> int:
        """All tests."""
        return self.passed + self.failed + self.skipped


def count(runs: Sequence[ModuleRun]) -> Count:
    """The tests of all modules by outcome."""
    passed, failed, skipped = (
        sum(len(run.of(outcome)) for run in runs) for outcome in (PASSED, FAILED, SKIPPED)
    )
    return Count(passed, failed, skipped)


def allowed_skip(test: str, reason: str) -> AllowedSkip | None:
    """The entry that allows ``test`` to be skipped for ``reason``, if any does."""
    for allowed in ALLOWED_SKIPS:
        if re.fullmatch(allowed.reason, reason) and re.fullmatch(allowed.tests, test):
            return allowed
    return None


def complaints(runs: Sequence[ModuleRun], *, whole: bool) -> list[str]:
    """Why a run is not good enough; empty when it is.

    The floor and the total hold for the ``whole`` suite only, not for a few of its modules.
    """
    counted = count(runs)
    found = [f"{run.module}: {run.trouble.splitlines()[0]}" for run in runs if run.trouble]
    if counted.failed:
        found.append(f"{counted.failed} tests failed; none may")
    for run in runs:
        for skip in run.of(SKIPPED):
            if allowed_skip(skip.test, skip.detail) is None:
                found.append(f"{run.module}: {skip.test} may not be skipped for: {skip.detail}")
    if whole and counted.passed < FLOOR:
        found.append(f"{counted.passed} tests passed; at least {FLOOR} must")
    if whole and counted.total < TOTAL:
        found.append(f"{counted.total} tests were found; there are {TOTAL}")
    return found
