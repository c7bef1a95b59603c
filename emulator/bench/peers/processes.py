"""Servers of peers: started for one run, stopped with it however it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from emulator.bench.peers.interface import PeerUnavailableError

_READY_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0
_LOG_TAIL_CHARS = 500


def find_program(name: str, needs: str) -> str:
    """Path of a program; ``PeerUnavailableError`` says what it ``needs``."""
    path = shutil.which(name)
    if path is None:
        raise PeerUnavailableError(f"no {name} on the search path; {needs}")
    return path


def dying_with_us(command: Sequence[str]) -> list[str]:
    """A command that is also ended when this process is killed (util-linux has setpriv).

    By SIGKILL, the one signal that a paused process obeys.
    """
    setpriv = shutil.which("setpriv")
    prefix = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
    return [*prefix, *command]


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a process that leads its group, and the group; one that has ended is left alone."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A process with a folder of its own."""

    def __init__(self, name: str, command: Callable[[Path], Sequence[str]]) -> None:
        self._name = name
        self._folder = tempfile.TemporaryDirectory(prefix=f"kvlane-bench-{name}-")
        self.folder = Path(self._folder.name)
        self._log = self.folder / "log"
        try:
            with self._log.open("wb") as log:
                # A session of its own, or Ctrl-C would end it before its client.
                self._process = subprocess.Popen(
                    dying_with_us(command(self.folder)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except BaseException:
            self._folder.cleanup()
            raise

    def connect(self, address: str | tuple[str, int]) -> socket.socket:
        """A connection to it by TCP or by a Unix socket, as soon as it listens."""
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while True:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.connect(address)
            except OSError as error:
                sock.close()
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise PeerUnavailableError(f"{self._name} {self._last_words()}") from error
                time.sleep(0.02)
            else:
                return sock

    def _last_words(self) -> str:
        tail = self._log.read_text(errors="replace")[-_LOG_TAIL_CHARS:]
        return f"does not listen; its last words: {' '.join(tail.split())}"

    def pause(self) -> None:
        """Stop it where it is."""
        signal_group(self._process, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        signal_group(self._process, signal.SIGCONT)

    def close(self) -> None:
        """End it, and take its folder away."""
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            self._folder.cleanup()
