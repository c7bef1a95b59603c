"""Memory that callers register, and what the agent has been told of it.

Registering is local and quick. The agent hears of a region before the first command that
names it, so that neither ``alloc`` nor ``register`` waits for the control plane.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_driver.buffers import BlockList, view_of
from host_driver.memory import CALLER_REGIONS, REMOTE_ACCESS, Located, Region, RegionTable
from kvlane.errors import CapacityError, ConfigError, KvlaneError
from kvlane.verbs.enums import AccessFlags
from kvlane.verbs.protocols import Device, MemoryRegion

Announce = Callable[[Sequence[MemoryRegion]], None]
"""Tells the agent of regions; raises ``KvlaneError``."""

Withdraw = Callable[[Sequence[int]], None]
"""Takes regions back from the agent by remote key; raises ``KvlaneError``."""

Ended = Callable[[], KvlaneError | None]
"""Why the session has ended, if it has: there is no agent to talk to any more."""

_logger = logging.getLogger(__name__)


class Registrations:
    """The regions of one session. Any thread may call."""

    def __init__(
        self, device: Device, announce: Announce, withdraw: Withdraw, ended: Ended
    ) -> None:
        self._device = device
        self._announce = announce
        self._withdraw = withdraw
        self._ended = ended
        self._table = RegionTable()
        self._held = 0
        """Regions of callers that the agent may know, those on their way out included."""
        self._table_lock = threading.Lock()
        self._agent_lock = threading.Lock()
        """Held while the agent is told something, so that it is told once and in order."""

    def alloc(self, nbytes: int) -> NDArray[np.uint8]:
        """Zeroed registered memory."""
        if nbytes <= 0:
            raise ConfigError(f"cannot allocate {nbytes} bytes; ask for 1 at least")
        memory = self._device.alloc(nbytes)
        self.register(memory)
        return memory

    def register(self, memory: Any) -> None:
        """Register the caller's memory.

        ``ConfigError`` when it overlaps a region, ``CapacityError`` for too many regions.
        """
        view = view_of(memory, "memory", writable=True).reshape(-1).view(np.uint8)
        if not len(view):
            raise ConfigError("memory is empty; there is nothing to register")
        with self._table_lock:
            self._table.require_free(view.ctypes.data, view.nbytes)
            if self._held >= CALLER_REGIONS:
                raise CapacityError(
                    f"{CALLER_REGIONS} regions are registered, or are being freed; wait for "
                    f"what is freed, or register a few large buffers and pass views of them"
                )
            self._table.add(Region(self._device.register(view, REMOTE_ACCESS), view))
            self._held += 1

    def register_blocks(
        self, blocks: BlockList, indices: NDArray[np.intp], access: AccessFlags
    ) -> list[Region]:
        """Register some blocks where they lie, in regions that no other block is looked up in.

        At most ``TEMPORARY_REGIONS`` at once; ``withdraw`` is to follow.
        """
        regions: list[Region] = []
        with ExitStack() as undo:
            for index in indices:
                memory = self._device.register(blocks.octets(int(index)), access)
                undo.callback(memory.close)
                regions.append(Region(memory, blocks.owners))
            undo.pop_all()
        return regions

    def locate(self, blocks: BlockList) -> Located:
        """The regions that hold blocks."""
        with self._table_lock:
            return self._table.locate(blocks.addrs, blocks.lengths)

    def announce(self, regions: Sequence[Region]) -> None:
        """Tell the agent of those that it does not know; ``KvlaneError`` when that fails."""
        with self._agent_lock:
            reason = self._ended()
            if reason is not None:
                raise reason
            new = [region for region in regions if not region.announced]
            if any(region.released for region in new):
                raise ConfigError("memory was freed before the operation that uses it began")
            if new:
                self._announce([region.memory_region for region in new])
            for region in new:
                region.announced = True

    def forget(self, memory: Any) -> Region:
        """Take a region out of use; ``release`` is to follow."""
        view = view_of(memory, "memory", writable=True)
        with self._table_lock:
            return self._table.remove(view.ctypes.data)

    def release(self, region: Region) -> None:
        """Deregister a caller's region; no transfer touches it afterwards."""
        try:
            self.withdraw([region])
        finally:
            with self._table_lock:
                self._held -= 1

    def withdraw(self, regions: Sequence[Region]) -> None:
        """Deregister regions, at the agent and here; no transfer touches them afterwards."""
        with self._agent_lock:
            for region in regions:
                region.released = True
        announced = [region.rkey for region in regions if region.announced]
        try:
            if announced and self._ended() is None:
                self._withdraw(announced)
        except KvlaneError as error:
            # Closing a region revokes its key, so that nothing can be written even so.
            _logger.info("the agent did not take a deregistration: %s", error)
        finally:
            for region in regions:
                region.memory_region.close()

    def close(self) -> None:
        """Deregister everything here; the session has ended before."""
        with self._table_lock:
            for region in self._table.drain():
                region.memory_region.close()
