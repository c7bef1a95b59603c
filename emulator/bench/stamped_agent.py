"""An agent in a process of its own whose requests and completions are noted in a log."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from dpu_agent.config import AgentConfig
from dpu_agent.runtime.process import Ready, run_agent
from emulator.bench.stamped_backend import LOG_OPTION, NAME, stamped_backend
from emulator.bench.workload import START_TIMEOUT_MS
from kvlane.config import load_mapping
from kvlane.errors import AgentUnreachableError

_STOP_TIMEOUT_S = 10.0


def start_stamped_agent(
    link: str, log: Path, capacity_blocks: int, block_bytes: int, undo: ExitStack
) -> str:
    """Start it until ``undo`` is done; ``host:port`` of its control plane."""
    mapping = {
        "control": {"listen": "127.0.0.1:0"},
        "device": {"verbs": NAME, "options": {"link": link, LOG_OPTION: str(log)}},
        "store": {"capacity_bytes": capacity_blocks * block_bytes, "block_bytes": block_bytes},
    }
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, mapping), daemon=True)
    process.start()
    there.close()
    undo.callback(process.join, _STOP_TIMEOUT_S)
    undo.callback(here.close)
    try:
        if here.poll(START_TIMEOUT_MS / 1000):
            return str(here.recv())
    except EOFError:
        pass
    raise AgentUnreachableError("the stamped agent did not come up; see what it has said above")


def _serve(pipe: Connection, mapping: dict[str, object]) -> None:
    """Run the agent until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_pipe() -> None:
        try:
            pipe.recv()
        except EOFError:
            os.kill(os.getpid(), signal.SIGTERM)

    with stamped_backend():
        config = load_mapping(AgentConfig, mapping, "stamped agent")

        def announce(ready: Ready) -> None:
            pipe.send(ready.control)
            threading.Thread(target=end_with_pipe, daemon=True).start()

        run_agent(config, announce=announce)
