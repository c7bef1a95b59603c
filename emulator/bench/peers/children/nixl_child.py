"""One end of a NIXL transfer: a process with registered blocks, over UCX."""

from __future__ import annotations

import base64
import importlib
import secrets
import time
from typing import Any

import numpy as np

_TIMEOUT_S = 60.0


class Peer:
    """An agent with one registered array."""

    def __init__(self) -> None:
        self._nixl = importlib.import_module("nixl_cu12")
        self._handles: dict[str, list[Any]] = {}

    def open(self, progress_thread: bool) -> None:
        """Start the agent.

        The end that transfers is better off without NIXL's thread of progress: it moves things on
        itself whenever it asks how far a transfer is, and a thread that spins beside it halves
        its rate. The other end needs the thread, as nobody calls there.
        """
        name = f"kvlane-bench-{secrets.token_hex(4)}"
        config = self._nixl.nixl_agent_config(enable_prog_thread=progress_thread, backends=["UCX"])
        self._agent: Any = self._nixl.nixl_agent(name, config)

    def allocate(self, blocks: int, block_bytes: int) -> dict[str, Any]:
        """Register memory; what the other end must know of this one."""
        self._rows = np.ones((blocks, block_bytes), np.uint8)
        whole = (int(self._rows.ctypes.data), self._rows.nbytes, 0, "")
        self._agent.register_memory([whole], "DRAM")
        metadata = base64.b64encode(self._agent.get_agent_metadata()).decode()
        return {"metadata": metadata, "address": whole[0]}

    def meet(self, metadata: str) -> None:
        """Learn of the other end."""
        self._other = self._agent.add_remote_agent(base64.b64decode(metadata))

    def prepare(self, address: int, blocks: int, nbytes: int) -> None:
        """Transfers between all lanes here and as many blocks there at a time, until all are had.

        ``nbytes`` of each block are moved.
        """
        lanes, stride = self._rows.shape
        here = int(self._rows.ctypes.data)
        local = [(here + lane * stride, nbytes, 0) for lane in range(lanes)]
        for operation in ("READ", "WRITE"):
            self._handles[operation] = []
            for first in range(0, blocks, lanes):
                remote = [(address + (first + lane) * stride, nbytes, 0) for lane in range(lanes)]
                handle = self._agent.initialize_xfer(
                    operation,
                    self._agent.get_xfer_descs(local, "DRAM"),
                    self._agent.get_xfer_descs(remote, "DRAM"),
                    self._other,
                )
                self._handles[operation].append(handle)

    def move(self, operation: str, repeat: int) -> float:
        """Go through all prepared transfers ``repeat`` times; seconds."""
        start = time.perf_counter()
        for _ in range(repeat):
            for handle in self._handles[operation]:
                self._transfer(handle)
        return time.perf_counter() - start

    def latency_us(self, operation: str, times: int) -> float:
        """Median of the first prepared transfer in microseconds."""
        spent_ns = []
        for _ in range(times):
            start = time.perf_counter_ns()
            self._transfer(self._handles[operation][0])
            spent_ns.append(time.perf_counter_ns() - start)
        return float(np.median(spent_ns)) / 1000

    def _transfer(self, handle: Any) -> None:
        state = self._agent.transfer(handle)
        if state == "PROC":
            deadline = time.monotonic() + _TIMEOUT_S
            while state == "PROC":
                state = self._agent.check_xfer_state(handle)
                if state == "PROC" and time.monotonic() > deadline:
                    raise TimeoutError("a transfer does not end")
        if state != "DONE":
            raise RuntimeError(f"a transfer ended as {state}")

    def close(self) -> None:
        """Let go of the transfers."""
        for handles in self._handles.values():
            for handle in handles:
                self._agent.release_xfer_handle(handle)
