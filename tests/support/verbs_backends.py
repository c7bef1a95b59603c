"""Devices of every backend, and the little traffic that tests of the verbs need.

The backend for hardware is opened over the drop-in for pyverbs: all of it runs as it does over
the real one, down to the calls of pyverbs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.pyverbs.config import FabricConfig
from emulator.pyverbs.loader import installed
from kvlane.verbs.backends import open_device
from kvlane.verbs.enums import AccessFlags, SendFlags, WrOpcode
from kvlane.verbs.protocols import CompletionQueue, Device, MemoryRegion, QpOptions, QueuePair
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, RecordArray, new_records

BACKENDS: dict[str, tuple[str, dict[str, object]]] = {
    "emulator": ("emulator", {"listen": "127.0.0.1:0"}),
    "pyverbs": ("pyverbs", {}),
    "pcie": ("emulator", {"link": "pcie"}),
}
"""What tests call a backend -> its name in the table of backends, and options of a device."""
BACKEND_NAMES = tuple(BACKENDS)
ALL_ACCESS = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE
PATIENCE_S = 120.0
"""After this a test fails that would otherwise hang; a first run compiles kernels."""


@contextmanager
def device_of(backend: str) -> Iterator[Device]:
    """An open device of the backend, on loopback."""
    with installed(FabricConfig()):
        name, options = BACKENDS[backend]
        device = open_device(name, options)
        try:
            yield device
        finally:
            device.close()


def completions(device: Device, cq: CompletionQueue, count: int) -> RecordArray:
    """Exactly ``count`` completions, waited for as agent and driver do."""
    give_up = time.monotonic() + PATIENCE_S
    out, polled = new_records(WC, count), 0
    while polled < count:
        assert time.monotonic() < give_up, f"{polled} of {count} completions came"
        worked = device.progress()
        fresh = cq.poll(out[polled:])
        polled += fresh
        if not worked and not fresh:
            device.wait(1000.0)
    return out


class Pair:
    """Two connected queue pairs of one device, with a page of memory each."""

    NBYTES = 16384

    def __init__(self, device: Device, options: QpOptions | None = None) -> None:
        self.device = device
        self.cq = device.create_cq(256)
        chosen = options or QpOptions()
        self.near: QueuePair = device.create_qp(self.cq, chosen)
        self.far: QueuePair = device.create_qp(self.cq, chosen)
        self.near_bytes, self.near_region = self._memory()
        self.far_bytes, self.far_region = self._memory()

    def connect(self) -> Pair:
        """Both to RTS."""
        self.near.connect(self.far.endpoint)
        self.far.connect(self.near.endpoint)
        return self

    def _memory(self) -> tuple[NDArray[np.uint8], MemoryRegion]:
        memory = self.device.alloc(self.NBYTES)
        return memory, self.device.register(memory, ALL_ACCESS)

    def sends(self, count: int = 1, opcode: WrOpcode = WrOpcode.SEND, **fields: Any) -> RecordArray:
        """Signaled requests of the near end over all of its memory, to all of the far end's."""
        requests = new_records(SEND_WR, count)
        requests.wr_id = np.arange(count)
        requests.opcode = opcode
        requests.send_flags = SendFlags.SIGNALED
        requests.local_addr = self.near_region.addr
        requests.length = self.NBYTES
        requests.lkey = self.near_region.lkey
        requests.remote_addr = self.far_region.addr
        requests.rkey = self.far_region.rkey
        for name, value in fields.items():
            requests[name] = value
        return requests

    def receives(self, count: int = 1, **fields: Any) -> RecordArray:
        """Receives of the far end into all of its memory."""
        requests = new_records(RECV_WR, count)
        requests.wr_id = np.arange(count)
        requests.local_addr = self.far_region.addr
        requests.length = self.NBYTES
        requests.lkey = self.far_region.lkey
        for name, value in fields.items():
            requests[name] = value
        return requests

    def completions(self, count: int) -> RecordArray:
        """Exactly ``count`` completions of both ends."""
        return completions(self.device, self.cq, count)
