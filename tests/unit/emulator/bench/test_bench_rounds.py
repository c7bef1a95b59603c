from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from emulator.bench.peers.interface import PeerFailedError, PeerUnavailableError
from emulator.bench.peers.processes import Server, find_program
from emulator.bench.peers.registry import start
from emulator.bench.peers.turns import turn
from emulator.bench.report import Report
from emulator.bench.rounds import alternate, best


class Recorded:
    """A peer that notes what is done with it."""

    name = "recorded"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def close(self) -> None:
        self.calls.append("close")


def _silent(text: str) -> None:
    pass


def test_rounds_alternate_after_a_warm_up_that_does_not_count() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    sides = {"a": lambda: side("a"), "b": lambda: side("b")}
    values = alternate(3, sides, _silent, Report())
    assert "".join(order) == "abbaabba"
    assert values == {"a": [4, 5, 8], "b": [3, 6, 7]}
    assert best(values, ["a", "b", "absent"]) == "b"
    assert best(values, ["absent"]) is None


def test_a_peer_that_fails_is_left_out_and_named_with_why() -> None:
    peer, report = Recorded(), Report()

    def measure() -> float:
        peer.calls.append("measure")
        if peer.calls.count("measure") == 2:
            raise ConnectionError("gone")
        return 1.0

    values = alternate(3, {"ours": lambda: 1.0, "them": turn(peer, measure)}, _silent, report)
    assert values == {"ours": [1.0, 1.0, 1.0]}
    assert report.missing["recorded"].needs == "ConnectionError: gone"
    assert peer.calls == ["resume", "measure", "pause"] * 2


def test_our_own_failure_is_not_a_peers() -> None:
    def fails() -> float:
        raise ConnectionError("ours")

    with pytest.raises(ConnectionError):
        alternate(1, {"ours": fails}, _silent, Report())
    with pytest.raises(PeerFailedError):
        turn(Recorded(), fails)()


def test_a_peer_is_paused_from_its_start_and_closed_on_errors() -> None:
    peer = Recorded()

    def fails() -> None:
        with ExitStack() as undo:
            start("recorded", lambda: peer, undo, Report())
            raise ValueError

    with pytest.raises(ValueError):
        fails()
    assert peer.calls == ["pause", "close"]


def test_an_absent_program_is_named_with_what_it_needs() -> None:
    def open_absent() -> Recorded:
        find_program("no-such-program", "install it")
        raise AssertionError

    report = Report()
    with ExitStack() as undo:
        assert start("absent", open_absent, undo, report) is None
    assert "install it" in report.missing["absent"].needs


def test_a_server_that_ends_is_unavailable_and_leaves_nothing() -> None:
    server = Server("broken", lambda _: [sys.executable, "-c", "raise SystemExit('bad option')"])
    with pytest.raises(PeerUnavailableError, match="bad option"):
        server.connect(str(server.folder / "socket"))
    server.close()
    assert not server.folder.exists()


def test_a_paused_server_is_closed_all_the_same() -> None:
    code = "import time; time.sleep(600)"
    server = Server("sleeper", lambda _: [sys.executable, "-c", code])
    folder: Path = server.folder
    process: subprocess.Popen[bytes] = server._process
    server.pause()
    server.close()
    assert process.returncode is not None
    assert not folder.exists()
