"""A machine that lacks something: a developer's skips what needs it, another must not."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.repository import ROOT, python_files, relative

_DROP_FROM_BOUNDING_SET = 24  # PR_CAPBSET_DROP of linux/prctl.h
_CAP_NET_RAW = 13
_CAP_SYS_ADMIN = 21
_libc = ctypes.CDLL(None)


class Lack(NamedTuple):
    """Something that a machine may lack, a test that needs it, and what that test says."""

    witness: str
    sentence: str
    environment: dict[str, str]
    capability: int | None = None


LACKS = {
    "tshark": Lack(
        "tests/unit/emulator/test_wire_cm.py::test_tshark_reads_the_same_path",
        "tshark is not installed; it is Debian's package of that name",
        {"PATH": ""},
    ),
    "ip": Lack(
        "tests/integration/test_raw_link.py::test_one_nic_an_interface",
        "ip is not installed; it is of Debian's package iproute2",
        {"PATH": ""},
    ),
    "network namespaces": Lack(
        "tests/integration/test_raw_link.py::test_one_nic_an_interface",
        "this user may make no network namespaces; run the tests as root",
        {},
        _CAP_SYS_ADMIN,
    ),
    "packet sockets": Lack(
        "tests/unit/emulator/test_udp_link.py::test_descriptors_tell_what_the_ip_header_says",
        "a packet socket needs CAP_NET_RAW; run the tests as root",
        {},
        _CAP_NET_RAW,
    ),
}


def without(capability: int) -> Callable[[], None]:
    """Let a child lack it; that of a user who has none lacks it anyhow."""
    return lambda: _libc.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)


@pytest.mark.parametrize("lack", LACKS.values(), ids=LACKS)
@pytest.mark.parametrize(
    ("required", "outcome"),
    [("", r"\b1 skipped\b"), ("1", r"\b1 (failed|error)\b")],
    ids=["a developer's", "one that must run everything"],
)
def test_what_a_machine_lacks(lack: Lack, required: str, outcome: str) -> None:
    command = [sys.executable, "-m", "pytest", "-n0", "-rsfE", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, lack.witness],
        env={**os.environ, **lack.environment, "KVLANE_REQUIRE_ALL": required},
        preexec_fn=None if lack.capability is None else without(lack.capability),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(outcome, done.stdout), done.stdout
    assert done.returncode == bool(required)
    assert lack.sentence in " ".join(done.stdout.split())


def test_continuous_integration_requires_all() -> None:
    assert "\nexport KVLANE_REQUIRE_ALL=1\n" in (ROOT / ".ci/run").read_text()


OTHER_REASONS = {
    "tests/support/requirements.py": "is where tests are skipped",
    "tests/support/tshark.py": "asks whether all is required",
    "tests/unit/host_driver/test_cli.py": "without an installed distribution there is no version",
    "tests/meta/test_policy_docs.py": "interpreted, so many accesses take hours",
    "tests/support/conversation_trace.py": "Mooncake's trace is nobody's to install",
    "tests/unit/dpu_agent/test_reuse_policy.py": "interpreted, what learns takes hours to learn",
    "tests/unit/dpu_agent/test_hierarchy.py": "interpreted, so many accesses take hours",
    "tests/unit/dpu_agent/test_metrics_server.py": "without IPv6 there is no such address",
    "tests/unit/host_driver/test_route.py": "without a route there is no source address",
}
"""Where else tests may be skipped, and why nothing is lacking there."""

_SKIPS = re.compile(r"pytest\.(skip|importorskip|mark\.skip\w*)\(")


def skipping(files: list[Path]) -> set[str]:
    """Those that skip tests by themselves."""
    return {relative(path) for path in files if _SKIPS.search(path.read_text())}


def test_no_other_test_is_skipped_for_what_a_machine_lacks() -> None:
    tests = [path for path in python_files() if relative(path).startswith("tests/")]
    assert skipping(tests) == set(OTHER_REASONS)
