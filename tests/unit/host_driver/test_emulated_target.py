"""Held: targets ``emulated:`` are read strictly, and the agent's process never outlives its parent.

The processes are the real thing except where a test needs one that misbehaves; then a
module called ``emulator`` of the test's own stands in, found first on the child's path.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from host_driver.emulated import EmulatedAgent, EmulatedOptions, is_emulated, parse_emulated
from kvlane.errors import AgentUnreachableError, ConfigError

READY = """
import json, os, sys, time
print(json.dumps({"control": "127.0.0.1:9", "arguments": sys.argv[1:]}), flush=True)
"""
UNTIL_EOF = "sys.stdin.read()\n"

Write = Callable[[str], None]


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the module that the child will run."""
    package = tmp_path / "emulator"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)  # Python 3.10 looks there before its path

    def write(source: str) -> None:
        (package / "__main__.py").write_text(source)

    return write


def test_only_the_scheme_makes_a_target_emulated() -> None:
    assert is_emulated("emulated:")
    assert is_emulated("emulated:?seed=1")
    assert not is_emulated("emulated.example:50057")


def test_without_options_a_small_agent_is_meant() -> None:
    options = parse_emulated("emulated:")
    assert options == parse_emulated("emulated:?") == EmulatedOptions()
    assert options.capacity % options.block_bytes == 0


def test_options_are_read_as_in_a_url() -> None:
    options = parse_emulated(
        "emulated:?capacity=1GiB&block_bytes=65536&faults=drop=0.01,dup=0.01&seed=7"
    )
    assert options == EmulatedOptions(
        capacity=1 << 30, block_bytes=65536, faults="drop=0.01,dup=0.01", seed=7
    )


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("emulated:?capcity=1GiB", "capcity is an unknown key; the nearest known one is capacity"),
        ("emulated:?capacity=lots", "capacity: 'lots' is not a size"),
        ("emulated:?seed=x", "seed: 'x'"),
        ("emulated:?seed=-1", "seed"),
        ("emulated:?block_bytes=1", "block_bytes.*at least|block_bytes.*64B? to"),
        ("emulated:?seed=1&seed=2", "seed appears twice"),
        ("emulated:?seed", "name=value"),
        ("emulated:seed=1", "name=value"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(target: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_emulated(target)


def test_options_become_arguments(emulator: Write, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    emulator(READY + f"open({str(seen)!r}, 'w').write(' '.join(sys.argv[1:]))\n" + UNTIL_EOF)
    options = EmulatedOptions(capacity=4096, block_bytes=64, faults="drop=0.5", seed=3)
    agent = EmulatedAgent(options, start_timeout_ms=60_000)
    assert agent.control == "127.0.0.1:9"
    agent.close()
    assert seen.read_text() == (
        "--listen 127.0.0.1:0 --ready-json --exit-on-stdin-eof "
        "--capacity 4096 --block-bytes 64 --faults drop=0.5 --seed 3 --link udp --spin-us 50 "
        "--batching auto --workers 0 --channels 0 --policy lru"
    )


def test_an_agent_that_dies_at_start_takes_its_last_words_along(emulator: Write) -> None:
    emulator("raise SystemExit('no free port left')")
    with pytest.raises(AgentUnreachableError, match=r"(?s)ended before.*no free port left"):
        EmulatedAgent(EmulatedOptions(), start_timeout_ms=60_000)


@pytest.mark.parametrize("line", ["ready!", "{}", "[]", "7"])
def test_an_agent_that_says_something_else_is_none(emulator: Write, line: str) -> None:
    emulator(f"import sys\nprint({line!r}, flush=True)\n" + UNTIL_EOF)
    with pytest.raises(AgentUnreachableError, match="instead of where it listens"):
        EmulatedAgent(EmulatedOptions(), start_timeout_ms=60_000)


def test_an_agent_that_never_comes_up_is_given_up(emulator: Write) -> None:
    emulator("import sys\nprint('still busy', end='', flush=True)\n" + UNTIL_EOF)
    with pytest.raises(AgentUnreachableError, match="in time"):
        EmulatedAgent(EmulatedOptions(), start_timeout_ms=1)


def test_an_agent_may_end_by_itself_before_it_is_made_to(emulator: Write, tmp_path: Path) -> None:
    last_act = tmp_path / "last act"
    emulator(READY + UNTIL_EOF + f"open({str(last_act)!r}, 'w').write('done')\n")
    EmulatedAgent(EmulatedOptions(), start_timeout_ms=60_000).close()
    assert last_act.read_text() == "done"


def test_an_agent_that_ignores_everything_is_killed(
    emulator: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host_driver.emulated.STOP_TIMEOUT_S", 0.05)
    emulator(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + READY
        + ("while True: time.sleep(1)\n")
    )
    agent = EmulatedAgent(EmulatedOptions(), start_timeout_ms=60_000)
    agent.close()
    with pytest.raises(ProcessLookupError):
        os.kill(agent.pid, 0)


def test_an_agent_ends_with_a_parent_that_is_killed(emulator: Write) -> None:
    emulator(READY + UNTIL_EOF)
    parent = (
        "import os, signal\n"
        "from host_driver.emulated import EmulatedAgent, EmulatedOptions\n"
        "agent = EmulatedAgent(EmulatedOptions(), 60_000)\n"
        "print(agent.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    died = subprocess.run([sys.executable, "-c", parent], env=environment, stdout=subprocess.PIPE)
    assert died.returncode == -signal.SIGKILL
    assert has_ended(int(died.stdout))


def has_ended(pid: int) -> bool:
    """Wait for the end of a process that is not our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(60_000))
    finally:
        os.close(descriptor)
