"""libcachesim: cache policies in C, simulated over a trace.

What is measured: ``process_trace``, its fastest way, in which reader, cache and loop are C. The
reader maps a file of 24-byte records that the kernel has in memory; making the cache is not
counted. Slower by factors of 4 and 8: the same from CSV, and ``get`` after ``get`` from Python.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.bench.peers.child import PEERS_PYTHON, Child

LIBCACHESIM = "libcachesim"
_MODULE = "emulator.bench.peers.children.libcachesim_child"
_RECORD = np.dtype([("time_s", "<u4"), ("object", "<u8"), ("bytes", "<u4"), ("next_use", "<i8")])
"""oracleGeneral. ``next_use`` is for its Belady, which is not asked here."""


class LibCacheSim:
    """A process that replays one trace through any of its caches."""

    name = LIBCACHESIM

    def __init__(self, blocks: NDArray[np.int64]) -> None:
        """``PeerUnavailableError`` where neither this interpreter nor the peers' has it."""
        here = find_spec(LIBCACHESIM) is not None
        self._child = Child(_MODULE, {}, Path(sys.executable) if here else PEERS_PYTHON)
        self._requests = len(blocks)
        try:
            with tempfile.NamedTemporaryFile(suffix=".oracleGeneral") as file:
                file.write(_records(blocks).tobytes())
                file.flush()
                self._child.call("open", path=file.name)
        except BaseException:
            self._child.close()
            raise

    def million_requests_per_second(self, class_name: str, capacity_blocks: int) -> float:
        """Of one of its classes, over the whole trace."""
        answer = self._child.call("replay", class_name=class_name, capacity=capacity_blocks)
        return self._requests / float(answer["seconds"]) / 1e6

    def pause(self) -> None:
        """Stop the process."""
        self._child.pause()

    def resume(self) -> None:
        """Let it run."""
        self._child.resume()

    def close(self) -> None:
        """End it."""
        self._child.close()


def _records(blocks: NDArray[np.int64]) -> NDArray[np.void]:
    records = np.zeros(len(blocks), _RECORD)
    records["object"] = blocks + 1  # 0 means nothing to some of its policies
    records["bytes"] = 1
    records["next_use"] = -1
    return records
