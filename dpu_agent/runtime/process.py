"""An agent as a process: from configuration to exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dpu_agent.agent import Agent, open_blocks
from dpu_agent.config import AgentConfig, NvmeConfig
from dpu_agent.control.server import ControlServer, serve
from dpu_agent.data.blocks import Blocks
from dpu_agent.durability.policy_memory import PolicyMemory
from dpu_agent.metrics.server import MetricsServer
from dpu_agent.runtime.warmup import warm_up
from dpu_agent.tiers.nvme import NvmeTier
from kvlane.capsule import BOOT_ID_BYTES
from kvlane.config import parse_endpoint
from kvlane.errors import ConfigError
from kvlane.jit import CACHE_DIR, is_warm, mark_warm
from kvlane.limits import MAX_WORKERS
from kvlane.processors import usable_processors
from kvlane.verbs.backends import open_device, open_ports
from kvlane.verbs.protocols import Device

_STOP_GRACE_S = 1.0
_SAVE_EVERY_S = 300.0
_MEMORY, _NVME = "memory", "nvme"
"""Tiers, in the names of files."""
_INDEX_SEED_BITS = 256
_CPUS_A_WORKER = 2
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ready:
    """What a started agent tells whoever started it."""

    control: str
    """``host:port`` of the control plane, as bound."""
    boot_id: bytes
    device: str
    metrics: str
    """``host:port`` at which metrics are scraped, as bound; empty where they are not."""


def run_agent(
    config: AgentConfig, *, announce: Callable[[Ready], None], stop_at_stdin_eof: bool = False
) -> int:
    """Run an agent until SIGTERM, SIGINT or, if wanted, the end of standard input.

    ``announce`` is called once, when every command would be served without delay. Returns
    the exit code: 0, or 1 when the data worker has died. ``ConfigError`` and ``VerbsError``
    say why it could not start.
    """
    for listen in filter(None, (config.control.listen, config.metrics.listen)):
        _require_free(listen)
    workers = config.data.workers or workers_for(usable_processors())
    devices = open_ports(config.device.verbs, config.device.options, workers)
    with ExitStack() as undo:
        for device in devices:
            undo.callback(device.close)
        memory = PolicyMemory(config.state.directory)
        ports = open_blocks(
            devices,
            config.store,
            secrets.randbits(_INDEX_SEED_BITS),
            partial(memory.new_policy, _MEMORY),
            is_lowest=not config.nvme.directories,
        )
        memory.keep(_MEMORY, config.store.policy, ports[0].store)
        tier = _open_tier(config.nvme, ports[0], memory)
        _compile(devices[0], config, colder=tier is not None)
        _log.info("%d data workers", len(devices))
        if tier is not None:
            ports = [replace(blocks, cold=tier.store) for blocks in ports]
        try:
            return asyncio.run(_serve(config, ports, tier, memory, announce, stop_at_stdin_eof))
        finally:
            memory.save()


def _open_tier(config: NvmeConfig, blocks: Blocks, memory: PolicyMemory) -> NvmeTier | None:
    """What lies below memory, if anything is to."""
    if not config.directories:
        return None
    tier = NvmeTier(
        config,
        blocks.store,
        blocks.pool.addr,
        seed=secrets.randbits(_INDEX_SEED_BITS),
        clock=time.monotonic_ns,
        new_policy=partial(memory.new_policy, _NVME),
    )
    memory.keep(_NVME, config.policy, tier.store)
    return tier


def workers_for(processors: int) -> int:
    """How many data workers an agent has by itself."""
    return min(max(1, processors // _CPUS_A_WORKER), MAX_WORKERS)


def compile_ahead(config: AgentConfig) -> bool:
    """Compile all that an agent of this configuration runs, as for an image; False when its device
    could not carry the commands that do it. ``ConfigError`` and ``VerbsError`` as for an agent."""
    device = open_device(config.device.verbs, config.device.options)
    try:
        return _compile(device, config, colder=True)
    finally:
        device.close()


def _compile(device: Device, config: AgentConfig, *, colder: bool) -> bool:
    """Make every kernel ready, which takes a minute the first time and no time afterwards."""
    link = config.device.options.get("link", "")
    without_tiers = f"agent-{config.device.verbs}{link}"
    kernels = [without_tiers, f"{without_tiers}-tiers"] if colder else [without_tiers]
    if not is_warm(kernels[-1]):
        _log.info("compiling kernels, once; kept in %s", CACHE_DIR)
    succeeded = warm_up(device, config.store.policy, clock=time.monotonic_ns, colder=colder)
    if succeeded:
        for name in kernels:
            mark_warm(name)
    return succeeded


def _require_free(listen: str) -> None:
    """``ConfigError`` when nobody could listen there, said before the kernels are compiled."""
    host, port = parse_endpoint(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {listen} ({error.strerror or error}); stop what is listening "
            f"there, or choose another address or port"
        ) from error


async def _serve(
    config: AgentConfig,
    ports: Sequence[Blocks],
    tier: NvmeTier | None,
    memory: PolicyMemory,
    announce: Callable[[Ready], None],
    stop_at_stdin_eof: bool,
) -> int:
    boot_id = secrets.token_bytes(BOOT_ID_BYTES)
    agent = Agent(
        ports,
        config.sessions,
        boot_id=boot_id,
        clock=time.monotonic_ns,
        spin_us=config.data.spin_us,
        tier=tier,
    )
    saving = asyncio.create_task(_save_now_and_then(memory))
    metrics: MetricsServer | None = None
    try:
        if config.metrics.listen:
            metrics = MetricsServer(config.metrics.listen, agent.figures)
        control = await serve(agent, config.control.listen)
        ready = Ready(
            control.address, boot_id, agent.device_name, metrics.address if metrics else ""
        )
        await _until_told_to_stop(agent, control, lambda: announce(ready), stop_at_stdin_eof)
    finally:
        saving.cancel()
        if metrics is not None:
            await asyncio.to_thread(metrics.close)
        await agent.stop()
    return 1 if agent.worker_death.done() else 0


async def _save_now_and_then(memory: PolicyMemory) -> None:
    """So that a kill costs a few minutes of learning."""
    while memory.has_anything_to_save:
        await asyncio.sleep(_SAVE_EVERY_S)
        await asyncio.to_thread(memory.save)


async def _until_told_to_stop(
    agent: Agent,
    control: ControlServer,
    announce: Callable[[], None],
    stop_at_stdin_eof: bool,
) -> None:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[str] = loop.create_future()

    def stop_for(reason: str) -> None:
        if not stop.done():
            stop.set_result(reason)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_for, number.name)
    if stop_at_stdin_eof:
        _watch_stdin(lambda: loop.call_soon_threadsafe(stop_for, "end of standard input"))
    announce()
    ends: list[asyncio.Future[Any]] = [stop, agent.worker_death]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if stop.done():
        _log.info("stopping: %s", stop.result())
        await control.drain()
        await agent.end_sessions("the agent is stopping")
    await control.stop(_STOP_GRACE_S)


def _watch_stdin(at_eof: Callable[[], object]) -> None:
    """Call ``at_eof`` in a thread of its own when standard input has ended.

    A thread, because epoll knows no regular files and no /dev/null.
    """

    def read() -> None:
        try:
            while os.read(sys.stdin.fileno(), 4096):
                pass
        finally:
            at_eof()

    threading.Thread(target=read, name="kvlane-stdin", daemon=True).start()
