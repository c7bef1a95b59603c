"""``idle``: what an agent with 64 connections that ask for nothing takes of a core."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import host_driver
from emulator.bench.report import Better, Goal, Report, summarise
from emulator.bench.rounds import Progress
from emulator.bench.workload import driver_config, start_agent

NAME = "idle"
CONNECTIONS = 64
SECONDS = 10.0
GOAL = Goal(0.01, Better.LOWER)


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process so far, user and system."""
    # Behind the name, which may hold blanks: fields 14 and 15 of proc(5).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(
    rounds: int,
    progress: Progress,
    link: str,
    connections: int = CONNECTIONS,
    seconds: float = SECONDS,
) -> Report:
    """Measure."""
    shares = []
    with ExitStack() as undo:
        agent = start_agent(link, 1024, 4096)
        undo.callback(agent.close)
        for _ in range(connections):
            config = driver_config(link, 1)
            undo.enter_context(host_driver.connect_sync(agent.control, config=config))
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            before, start = cpu_seconds(agent.pid), time.monotonic()
            time.sleep(seconds)
            spent_s = cpu_seconds(agent.pid) - before
            shares.append(spent_s / (time.monotonic() - start))
    ones = [1.0] * rounds
    return Report([summarise(f"{NAME}-{link}", "cores", shares, "one core", ones, GOAL)])
