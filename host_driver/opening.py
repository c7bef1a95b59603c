"""The handshake that opens a session."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

from host_driver.block_kernels import warm_up
from host_driver.config import DriverConfig
from host_driver.control import AgentCapabilities, ControlClient, ControlSession
from host_driver.data_path import DataPath
from host_driver.emulated import EmulatedAgent, EmulatedOptions, is_emulated, parse_emulated
from host_driver.engine import Engine
from host_driver.queue import Peer
from host_driver.route import toward
from host_driver.self_test import self_test
from host_driver.session import Session
from kvlane.config import parse_endpoint
from kvlane.errors import KvlaneError, ProtocolError, SessionError, VersionMismatchError
from kvlane.jit import CACHE_DIR, is_warm, mark_warm
from kvlane.limits import MAX_CAPSULE_BYTES, MAX_KEYS_PER_CAPSULE
from kvlane.namespace import Namespace

_logger = logging.getLogger(__name__)


class Opening:
    """An opening in a thread, which may be abandoned at any time from another one."""

    def __init__(self, target: str, namespace: Namespace, config: DriverConfig) -> None:
        self._target = target
        self._namespace = namespace
        self._config = config
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._abandoned = False

    def run(self) -> Session:
        """Open the session; whoever abandons the opening gets a closed one."""
        session = open_session(self._target, self._namespace, self._config)
        with self._lock:
            self._session = session
            abandoned = self._abandoned
        if abandoned:
            session.close()
        return session

    def abandon(self) -> None:
        """Have the session closed now or as soon as it is open; does not wait for that."""
        with self._lock:
            self._abandoned = True
            session = self._session
        if session is not None:
            # No daemon: it is to be closed even if the program ends meanwhile.
            threading.Thread(target=session.close, name="kvlane-abandon").start()


def open_session(target: str, namespace: Namespace, config: DriverConfig) -> Session:
    """Connect to the agent at ``target``; blocks, and leaves nothing behind when it raises."""
    emulated = _parsed(target)  # first: a mistake in it must not cost a minute of compiling
    link = config.device_options.get("link", emulated.link if emulated else "")
    kernels = f"driver-{config.verbs}{link}"
    if not is_warm(kernels):
        # Nothing else shows for a minute, and the program need not have set up logging.
        sys.stderr.write(f"kvlane: compiling kernels, once; kept in {CACHE_DIR}\n")
    warm_up()
    with ExitStack() as undo:
        address = target if emulated is None else _start_agent(emulated, config, undo)
        control = ControlClient(address, config.control_timeout_ms)
        undo.callback(control.close)
        _require_usable(control.get_capabilities(), namespace)
        path = DataPath(_on_link(emulated, toward(address, config)))
        undo.callback(path.close)
        if self_test(path.device, time.monotonic_ns):
            mark_warm(kernels)
        opened = control.open_session(
            f"{socket.gethostname()}:{os.getpid()}",
            namespace,
            path.endpoint,
            [path.staging.region.memory_region],
            config.queue_depth,
        )
        try:
            engine = _start_engine(path, opened, config)
            return Session(namespace, config, control, opened, path, engine, undo)
        except BaseException:
            _close_quietly(control, opened)
            raise


def _close_quietly(control: ControlClient, opened: ControlSession) -> None:
    """End a session after an error, which this must not replace by another."""
    try:
        control.close_session(opened.name)
    except KvlaneError as error:
        _logger.info("%s could not be closed: %s", opened.name, error)


def _parsed(target: str) -> EmulatedOptions | None:
    """Options of an agent that has to be started; ``None`` where ``host:port`` of one is given."""
    if is_emulated(target):
        return parse_emulated(target)
    parse_endpoint(target)
    return None


def _on_link(emulated: EmulatedOptions | None, config: DriverConfig) -> DriverConfig:
    """``config`` with a NIC like that of the agent that was started, if it names no other link."""
    if emulated is None or config.verbs != "emulator":
        return config
    if config.device_options.get("link", emulated.link) != emulated.link:
        return config
    alike = {"link": emulated.link, "batching": emulated.batching}
    return replace(config, device_options={**alike, **config.device_options})


def _start_agent(options: EmulatedOptions, config: DriverConfig, undo: ExitStack) -> str:
    """Start an emulated agent; ``host:port`` of it."""
    agent = EmulatedAgent(options, config.emulated_start_timeout_ms)
    undo.callback(agent.close)
    return agent.control


def _require_usable(agent: AgentCapabilities, namespace: Namespace) -> None:
    if (
        agent.max_capsule_bytes < MAX_CAPSULE_BYTES
        or agent.max_keys_per_capsule < MAX_KEYS_PER_CAPSULE
    ):
        raise VersionMismatchError(
            f"the agent takes capsules of {agent.max_capsule_bytes} bytes and "
            f"{agent.max_keys_per_capsule} keys, this driver sends {MAX_CAPSULE_BYTES} and "
            f"{MAX_KEYS_PER_CAPSULE}; use the same release on both sides"
        )
    if namespace.block_bytes > agent.max_block_bytes:
        raise SessionError(
            f"blocks of namespace {namespace.name!r} have {namespace.block_bytes} bytes, the "
            f"agent's slots {agent.max_block_bytes}; give the agent larger ones (block_bytes)"
        )


def _start_engine(path: DataPath, opened: ControlSession, config: DriverConfig) -> Engine:
    depth = min(opened.queue_depth, config.queue_depth)
    if depth < 1:
        raise ProtocolError("the agent granted no command in flight")
    queue = path.connect(opened.endpoint, Peer(opened.session_id, opened.boot_id), depth)
    return Engine(path.device, queue, time.monotonic_ns, config.spin_us)
