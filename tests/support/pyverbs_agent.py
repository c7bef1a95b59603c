"""Agent and driver on ``verbs: pyverbs``, in this process or in one that a test may kill.

Their devices are those of the drop-in for pyverbs: in this process the ones that are installed,
in another one its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dpu_agent.agent import Agent, open_blocks
from dpu_agent.config import SessionsConfig, StoreConfig
from dpu_agent.control.server import serve
from kvlane.capsule import BOOT_ID_BYTES
from kvlane.verbs.backends import open_device
from tests.support.repository import SOURCE_ROOTS

LIMIT_S = 300.0
"""A first start may compile kernels."""

AGENT_PROGRAM = """
import json, sys
from dpu_agent.config import AgentConfig
from dpu_agent.runtime.process import run_agent
from kvlane.config import load_mapping

def announce(ready):
    print(json.dumps({"control": ready.control, "device": ready.device}), flush=True)

config = load_mapping(AgentConfig, {
    "control": {"listen": "127.0.0.1:0"},
    "device": {"verbs": "pyverbs"},
    "store": {"capacity_bytes": 1 << 24, "block_bytes": 1 << 16},
})
sys.exit(run_agent(config, announce=announce, stop_at_stdin_eof=True))
"""

DRIVER_PROGRAM = """
import sys
import host_driver
dpu = host_driver.connect_sync(sys.argv[1], config=host_driver.DriverConfig(verbs="pyverbs"))
keys = host_driver.block_chain(dpu.root_key, list(range(256)), 4)
blocks = dpu.alloc(64 << 16).reshape(64, 1 << 16)
dpu.store(keys, blocks)
print("stored", flush=True)
while True:
    dpu.retrieve(keys, blocks)
"""


@contextmanager
def agent_here(device_name: str, store: StoreConfig) -> Iterator[str]:
    """An agent in a thread of this process; where its control plane listens."""
    device = open_device("pyverbs", {"device": device_name})
    ready, address = threading.Event(), [""]
    loop = asyncio.new_event_loop()
    stop = loop.create_future()

    async def live() -> None:
        ports = open_blocks([device], store, 1)
        boot_id = secrets.token_bytes(BOOT_ID_BYTES)
        agent = Agent(ports, SessionsConfig(), boot_id=boot_id, clock=time.monotonic_ns)
        try:
            control = await serve(agent, "127.0.0.1:0")
            address[0] = control.address
            ready.set()
            await stop
            await control.drain()
            await control.stop(0)
        finally:
            await agent.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(live(),))
    thread.start()
    try:
        assert ready.wait(LIMIT_S), "the agent did not start"
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set_result, None)
        thread.join(LIMIT_S)
        loop.close()
        device.close()


@dataclass(frozen=True)
class ForeignAgent:
    """An agent that is a process."""

    process: subprocess.Popen[str]
    control: str
    device: str


@contextmanager
def agent_elsewhere() -> Iterator[ForeignAgent]:
    """``run_agent`` in a process of its own, which is dead when the block ends."""
    with _program(AGENT_PROGRAM) as (process, line):
        yield ForeignAgent(process, **json.loads(line))


@contextmanager
def driver_elsewhere(control: str) -> Iterator[subprocess.Popen[str]]:
    """A driver that retrieves for ever, in a process of its own."""
    with _program(DRIVER_PROGRAM, control) as (process, _):
        yield process


@contextmanager
def _program(code: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A program on devices of its own, from its first line of output on; killed at the end."""
    path = os.pathsep.join(str(root) for root in SOURCE_ROOTS)
    process = subprocess.Popen(
        [sys.executable, "-m", "emulator.pyverbs", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"it ended: {process.communicate(timeout=LIMIT_S)[1]}")
        yield process, line
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
