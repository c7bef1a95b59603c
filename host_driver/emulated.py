"""Targets ``emulated:``: a private emulated agent in a process of its own."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO
from urllib.parse import parse_qsl

from kvlane.config import BYTES, load_mapping, setting
from kvlane.errors import AgentUnreachableError, ConfigError
from kvlane.limits import MAX_BLOCK_BYTES, MAX_CHANNELS, MAX_WORKERS, MIN_BLOCK_BYTES

SCHEME = "emulated:"

STOP_TIMEOUT_S = 5.0
"""How long the agent may take to stop by itself, and again after SIGTERM."""

_STDERR_TAIL_BYTES = 4096
_NUMBERS = ("seed", "spin_us", "workers", "channels")


@dataclass(frozen=True, slots=True)
class EmulatedOptions:
    """What a target may say after ``emulated:?``, as ``name=value`` joined by ``&``."""

    capacity: int = setting(256 << 20, "Memory for blocks.", unit=BYTES)
    block_bytes: int = setting(
        64 << 10,
        "Size of a slot, so the longest block that can be stored.",
        unit=BYTES,
        minimum=MIN_BLOCK_BYTES,
        maximum=MAX_BLOCK_BYTES,
    )
    link: str = setting(
        "udp",
        "What carries the data path: 'udp' is RoCEv2 in datagrams, as between hosts; 'pcie' is "
        "shared memory, as between a host and the DPU in it, and by far the faster.",
        choices=("udp", "pcie"),
    )
    batching: str = setting(
        "auto",
        "How the udp link moves many packets by one call, at both ends: 'segments' by UDP_SEGMENT "
        "and UDP_GRO, 'messages' by sendmmsg and recvmmsg; 'auto' takes what the kernel has.",
        choices=("auto", "segments", "messages"),
    )
    spin_us: int = setting(
        50,
        "How long the agent looks for work before it sleeps, in microseconds.",
        minimum=0,
        maximum=1_000_000,
    )
    workers: int = setting(
        0,
        "Threads of the agent that serve commands; 0 is one for every two processors.",
        minimum=0,
        maximum=MAX_WORKERS,
    )
    channels: int = setting(
        0,
        "Processors with which the agent copies on the pcie link; 0 chooses by those there are.",
        minimum=0,
        maximum=MAX_CHANNELS,
    )
    policy: str = setting("lru", "Eviction policy of the memory.")
    nvme: str = setting(
        "", "Directories of a tier below memory, with ':' between them; empty: there is none."
    )
    nvme_capacity: int = setting(16 << 30, "Room in each of them.", unit=BYTES)
    nvme_segment: int = setting(256 << 20, "Size of their files.", unit=BYTES)
    nvme_policy: str = setting("lru", "Eviction policy of that tier.")
    faults: str = setting("", "Faults of the agent's link, such as drop=0.01.")
    seed: int = setting(0, "Seed of the faults.", minimum=0)


def is_emulated(target: str) -> bool:
    """True for targets of this kind."""
    return target.startswith(SCHEME)


def parse_emulated(target: str) -> EmulatedOptions:
    """The options of a target; ``ConfigError`` names an unknown one and the nearest known."""
    query = target.removeprefix(SCHEME)
    if query and not query.startswith("?"):
        raise ConfigError(f"{target!r}: options follow as {SCHEME}?name=value&name=value")
    values: dict[str, object] = {}
    try:
        pairs = parse_qsl(query[1:], keep_blank_values=True, strict_parsing=bool(query[1:]))
    except ValueError as error:
        raise ConfigError(f"{target!r}: {error}; write {SCHEME}?name=value") from error
    for name, text in pairs:
        if name in values:
            raise ConfigError(f"{target!r}: {name} appears twice")
        values[name] = int(text) if name in _NUMBERS and text.isdecimal() else text
    return load_mapping(EmulatedOptions, values, target)


class EmulatedAgent:
    """A running emulated agent, which ends with this object or with this process.

    Its standard input is a pipe that only this process holds: the agent ends when the
    pipe does, however this process dies.
    """

    def __init__(self, options: EmulatedOptions, start_timeout_ms: int) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives with us)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "emulator", *_arguments(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=_environment(),
        )
        try:
            self.control = self._read_ready(start_timeout_ms)
            """``host:port`` of its control plane."""
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def close(self) -> None:
        """Stop it: by the end of its input, else by SIGTERM, else by SIGKILL."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        for insist in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(STOP_TIMEOUT_S)
                break
            except subprocess.TimeoutExpired:
                insist()
        self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def _read_ready(self, timeout_ms: int) -> str:
        line = self._read_line(time.monotonic() + timeout_ms / 1000)
        try:
            control = json.loads(line)["control"]
        except (ValueError, TypeError, LookupError) as error:
            raise self._failure(f"said {line!r} instead of where it listens") from error
        return str(control)

    def _read_line(self, deadline_s: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0 or not selector.select(remaining_s):
                    raise self._failure("did not come up in time")
                part = os.read(descriptor, 4096)
                if not part:
                    raise self._failure("ended before it was ready")
                line += part
        return line

    def _failure(self, what: str) -> AgentUnreachableError:
        # Not by seeking: the child writes at the same offset.
        descriptor = self._stderr.fileno()
        start = max(0, os.fstat(descriptor).st_size - _STDERR_TAIL_BYTES)
        tail = os.pread(descriptor, _STDERR_TAIL_BYTES, start).decode(errors="replace").strip()
        said = f"; its last words:\n{tail}" if tail else ""
        return AgentUnreachableError(
            f"the emulated agent (`{sys.executable} -m emulator`) {what}{said}"
        )


def _arguments(options: EmulatedOptions) -> Iterable[str]:
    yield from ("--listen", "127.0.0.1:0", "--ready-json", "--exit-on-stdin-eof")
    yield from ("--capacity", str(options.capacity), "--block-bytes", str(options.block_bytes))
    yield from ("--faults", options.faults, "--seed", str(options.seed))
    yield from ("--link", options.link, "--spin-us", str(options.spin_us))
    yield from ("--batching", options.batching)
    yield from ("--workers", str(options.workers))
    yield from ("--channels", str(options.channels), "--policy", options.policy)
    if options.nvme:
        yield from ("--nvme", options.nvme, f"--set=nvme.policy={options.nvme_policy}")
        yield from ("--nvme-capacity", str(options.nvme_capacity))
        yield from ("--nvme-segment", str(options.nvme_segment))


def _environment() -> dict[str, str]:
    """The parent's, with its import path, so that the child imports what the parent would."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
