"""Agent and driver on real verbs: the tests of the KV commands in four set-ups.

The same test functions, as separate processes for agent and driver: both on the emulator, both
on soft-RoCE in the guest, and one on each, either way round.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.interop.ends import EMULATOR, ROOT, RXE, Ends
from tests.interop.network import GUEST_IPV4, HOST_IPV4, TAP
from tests.interop.remote import RemoteError
from tests.interop.report import CannotRunError, Report, require
from tests.support.kv_target import SLOT_BYTES

TESTS = "tests/integration/test_kv_commands.py"
CONTROL_PORT = 7600
START_TIMEOUT_S = 90.0
TESTS_TIMEOUT_S = 280.0
_POLL_S = 0.1
_ON_THE_WIRE = {"link": "raw", "interface": TAP}
_PYVERBS = "usr/lib/python3/dist-packages/pyverbs"

IsRunning = Callable[[], bool]
Results = dict[str, str]
"""Test -> empty when it passed, else what went wrong."""


@dataclass(frozen=True, slots=True)
class SetUp:
    """Which end runs the agent, and which the driver."""

    agent: str
    driver: str

    @property
    def direction(self) -> str:
        """For the report."""
        return f"{self.driver} to {self.agent}"


SET_UPS = (SetUp(EMULATOR, EMULATOR), SetUp(RXE, RXE), SetUp(RXE, EMULATOR), SetUp(EMULATOR, RXE))


def run(ends: Ends, report: Report) -> None:
    """All cells of this part: one a test and set-up."""
    ends.stop_emulator()
    names: list[str] = []
    for set_up in SET_UPS:
        results: Results = {}
        with report.cell("KV, tests run", "", set_up.direction):
            if RXE in (set_up.agent, set_up.driver):
                _require_same_python(ends)
            results = _results_of(ends, set_up)
            require(results, "no test ran")
            names = names or sorted(results)
            require(sorted(results) == names, f"other tests than elsewhere: {sorted(results)}")
        for name in names:
            with report.cell(f"KV {name}", "", set_up.direction):
                if not results:
                    raise CannotRunError("the tests of this set-up did not run")
                require(not results.get(name, "did not run"), results.get(name, "did not run"))


def _results_of(ends: Ends, set_up: SetUp) -> Results:
    if set_up == SetUp(EMULATOR, EMULATOR):
        return _tests_outside(ends, {"KVLANE_TEST_LINKS": "udp"})
    with _agent(ends, set_up.agent) as control:
        driver = {"operation_timeout_ms": 60_000, "control_timeout_ms": 30_000}
        if set_up.driver == RXE:
            settings = {**driver, "verbs": "pyverbs"}
            return _tests_in_guest(ends, _variables(control, settings))
        settings = {**driver, "verbs": "emulator", "device_options": _ON_THE_WIRE}
        return _tests_outside(ends, _variables(control, settings))


def _variables(control: str, driver: Mapping[str, object]) -> dict[str, str]:
    return {"KVLANE_TEST_AGENT": control, "KVLANE_TEST_DRIVER": json.dumps(driver)}


# Agents


@contextmanager
def _agent(ends: Ends, end: str) -> Iterator[str]:
    """An agent at that end; where its control plane is."""
    host = GUEST_IPV4 if end == RXE else HOST_IPV4
    device = {"verbs": "pyverbs"} if end == RXE else {"options": _ON_THE_WIRE}
    config = {
        "control": {"listen": f"{host}:{CONTROL_PORT}"},
        "device": device,
        "store": {"capacity_bytes": 256 << 20, "block_bytes": SLOT_BYTES},
        # A completion queue for the default of 64 is more than soft-RoCE has.
        "sessions": {"max_sessions": 16},
    }
    (ends.exchange / "agent.yaml").write_text(json.dumps(config))  # JSON is YAML
    opened = _agent_in_guest(ends) if end == RXE else _agent_outside(ends)
    with opened as is_running:
        _await_listener(host, is_running, ends.exchange / "agent.log")
        yield f"{host}:{CONTROL_PORT}"


def _await_listener(host: str, is_running: IsRunning, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while is_running() and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((host, CONTROL_PORT), timeout=1.0):
            return
        time.sleep(_POLL_S)
    said = log.read_text(errors="replace") if log.exists() else ""
    raise RemoteError(f"the agent at {host} did not come up: {said[-1500:]}")


_COMMAND = str(Path(sys.executable).with_name("kvlane"))
"""The guest sees it under the same name."""


@contextmanager
def _agent_outside(ends: Ends) -> Iterator[IsRunning]:
    with (ends.exchange / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [_COMMAND, "agent", "--config", str(ends.exchange / "agent.yaml")],
            cwd=ROOT,
            env={**os.environ, **_compiler_settings(ends)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield lambda: agent.poll() is None
    finally:
        agent.kill()
        agent.wait()


@contextmanager
def _agent_in_guest(ends: Ends) -> Iterator[IsRunning]:
    words = [_COMMAND, "agent", "--config", "/exchange/agent.yaml"]
    agent = _start_in_guest(ends, words, {}, "agent.log")
    try:
        yield lambda: ends.rxe.call("is_running", program=agent)
    finally:
        ends.rxe.call("finish", program=agent, within_s=0.0)


# Tests


def _pytest(results: str) -> list[str]:
    """Without plugins that only take their time to load."""
    plugins = [f"-pno:{name}" for name in ("xdist", "cacheprovider", "hypothesispytest")]
    return ["-m", "pytest", "-q", *plugins, f"--junitxml={results}", TESTS]


def _tests_outside(ends: Ends, variables: Mapping[str, str]) -> Results:
    results = ends.exchange / "results.xml"
    results.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [sys.executable, *_pytest(str(results))],
            cwd=ROOT,
            env={**os.environ, **_compiler_settings(ends), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TESTS_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RemoteError(f"pytest did not end within {TESTS_TIMEOUT_S} s") from error
    return _read(results, done.stdout + done.stderr)


def _tests_in_guest(ends: Ends, variables: Mapping[str, str]) -> Results:
    results = ends.exchange / "results.xml"
    results.unlink(missing_ok=True)
    words = [sys.executable, *_pytest("/exchange/results.xml")]
    program = _start_in_guest(ends, words, variables, "tests.log")
    deadline = time.monotonic() + TESTS_TIMEOUT_S
    while ends.rxe.call("is_running", program=program) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    ends.rxe.call("finish", program=program, within_s=0.0)
    return _read(results, (ends.exchange / "tests.log").read_text(errors="replace"))


def _read(results: Path, output: str) -> Results:
    """Results by the names of tests, from pytest's report."""
    if not results.exists():
        raise RemoteError(f"pytest wrote no results: {output[-1500:]}")
    found: Results = {}
    for case in ElementTree.parse(results).iter("testcase"):
        trouble = [child for child in case if child.tag in ("failure", "error", "skipped")]
        name = case.get("name", "").removeprefix("test_").replace("_", " ")
        found[name] = "; ".join(f"{each.tag}: {each.get('message', '')[:300]}" for each in trouble)
    return found


# The guest's interpreter


def _start_in_guest(ends: Ends, words: list[str], variables: Mapping[str, str], log: str) -> int:
    """Start this project's interpreter, which the guest sees too, with Debian's pyverbs."""
    site = ends.exchange / "site"
    if not site.exists():
        site.mkdir()
        (site / "pyverbs").symlink_to(f"/{_PYVERBS}")
    settings = {
        "PYTHONPATH": "/exchange/site",
        "PYTHONDONTWRITEBYTECODE": "1",
        **_compiler_settings(ends),
        **variables,
    }
    assignments = [f"{name}={value}" for name, value in settings.items()]
    shell = f'cd {ROOT} && exec "$@" >/exchange/{log} 2>&1'
    command = ["sh", "-c", shell, "sh", "env", *assignments, *words]
    number: int = ends.rxe.call("start", words=command)
    return number


def _compiler_settings(ends: Ends) -> dict[str, str]:
    """Kernels for any x86-64, so that the guest's emulated processor finds them compiled."""
    cache = ends.files.folder.parent / "kernels"
    return {
        "NUMBA_CPU_NAME": "x86-64",
        "NUMBA_CPU_FEATURES": "",
        "KVLANE_CACHE_DIR": str(cache),
    }


def _require_same_python(ends: Ends) -> None:
    """Debian's pyverbs is a binary for Debian's version of Python."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if not list((ends.files.tree / _PYVERBS).glob(f"*{suffix}")):
        raise CannotRunError(
            f"Debian's pyverbs does not fit this Python ({suffix}); make .venv with Debian's"
        )
