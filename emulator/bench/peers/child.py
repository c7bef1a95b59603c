"""A peer in an interpreter of its own, spoken to in JSON lines over pipes."""

from __future__ import annotations

import contextlib
import json
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator.bench.peers.interface import PeerUnavailableError
from emulator.bench.peers.processes import dying_with_us, signal_group
from kvlane.jit import CACHE_DIR

PEERS_FOLDER = CACHE_DIR.parent / "bench-peers"
"""The environment that ``make bench-peers`` makes."""
PEERS_PYTHON = PEERS_FOLDER / "bin" / "python"
_SERVE_MODULE = "emulator.bench.peers.children.serve"
_SERVE = Path(__file__).parent / "children" / f"{_SERVE_MODULE.rpartition('.')[2]}.py"
_ANSWER_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 5.0
_LOG_TAIL_BYTES = 500


class Child:
    """A running program of ``children``; ``close`` ends it."""

    def __init__(self, module: str, environment: Mapping[str, str], python: Path = PEERS_PYTHON):
        if not python.exists():
            raise PeerUnavailableError(f"no {python}; run make bench-peers")
        self._module = module
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives with us)
        self._pending = b""
        try:
            self._process = subprocess.Popen(
                dying_with_us(_command(module, environment, python)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )
        except BaseException:
            self._log.close()
            raise
        try:
            self._answer()
        except BaseException as error:
            self.close()
            if isinstance(error, RuntimeError):
                raise PeerUnavailableError(str(error)) from error
            raise

    def call(self, name: str, **arguments: Any) -> Any:
        """Have a method of the peer called; ``RuntimeError`` with what went wrong there."""
        assert self._process.stdin is not None
        line = json.dumps({"call": name, "arguments": arguments}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failure("has ended") from error
        return self._answer()

    def _answer(self) -> Any:
        answer = json.loads(self._line())
        if "error" in answer:
            raise self._failure(str(answer["error"]))
        return answer["result"]

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(_ANSWER_TIMEOUT_S):
                    raise self._failure("does not answer")
                part = self._process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not part:
                    raise self._failure("has ended")
                self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _failure(self, what: str) -> RuntimeError:
        size = self._log.seek(0, 2)
        self._log.seek(max(0, size - _LOG_TAIL_BYTES))
        tail = " ".join(self._log.read().decode(errors="replace").split())
        said = f"; its last words: {tail}" if tail else ""
        return RuntimeError(f"{self._module}: {what}{said}")

    def pause(self) -> None:
        """Stop it where it is."""
        signal_group(self._process, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        signal_group(self._process, signal.SIGCONT)

    def close(self) -> None:
        """End it: by the end of its input, else by SIGKILL."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.resume()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


def _command(module: str, environment: Mapping[str, str], python: Path) -> Sequence[str]:
    """Without our own import path, which belongs to another interpreter."""
    settings = [f"{name}={value}" for name, value in environment.items()]
    name = module.rpartition(".")[2]  # children are found beside serve.py
    return ["env", "-u", "PYTHONPATH", *settings, str(python), str(_SERVE), name]
