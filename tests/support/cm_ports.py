"""Emulated devices with connection management, for tests in one process."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from emulator.cm.events import CmEvent
from emulator.cm.manager import CmOptions
from emulator.cm.service import CmService
from emulator.pyverbs import fabric
from emulator.pyverbs.config import FabricConfig

PATIENCE_S = 30.0
"""How long a test waits for what must come; it is never reached unless something is broken."""
_E = TypeVar("_E")


@contextmanager
def ports(count: int, **options: Any) -> Iterator[list[fabric.Port]]:
    """Open ports of ``count`` emulated devices."""
    before = fabric.install(FabricConfig(devices=count, **options))
    try:
        yield [device.open() for device in fabric.devices()]
    finally:
        fabric.restore(before)


class Listening:
    """A service whose events a test takes one by one."""

    def __init__(self, port: fabric.Port, options: CmOptions) -> None:
        self.service = CmService(port, options)
        self.gid = port.gids[0]
        self._events: queue.SimpleQueue[CmEvent] = queue.SimpleQueue()

    def sink(self, event: CmEvent) -> None:
        """What the service tells."""
        self._events.put(event)

    def listen(self, service_id: int) -> int:
        """Take requests."""
        with self.service.manager() as manager:
            listener = manager.listen(service_id, 64)
            self.service.listeners[listener] = self.sink
        return listener

    def expect(self, kind: type[_E]) -> _E:
        """The next event, which must be of a kind."""
        event = self._events.get(timeout=PATIENCE_S)
        assert isinstance(event, kind), event
        return event
