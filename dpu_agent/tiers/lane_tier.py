"""A lane's way to the thread that moves blocks, and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dpu_agent.data.awaited import AwaitedBlocks
from dpu_agent.data.server import CapsuleServer
from dpu_agent.data.state import Notices
from dpu_agent.runtime.worker import DataWorker, WorkerDeadError
from dpu_agent.tiers.demotion import reserve_blocks
from dpu_agent.tiers.thread import TierThread
from kvlane.capsule import KeyArray
from kvlane.seams import Clock


class LaneTier:
    """What a lane's server hands over goes to the thread; what is done comes back as a call."""

    def __init__(
        self, thread: TierThread, capacity_blocks: int, notices: Notices, clock: Clock
    ) -> None:
        self._thread = thread
        self._notices = notices
        self._clock = clock
        self._server: CapsuleServer | None = None
        self._worker: DataWorker | None = None
        self._low_water_blocks = reserve_blocks(capacity_blocks)

    def attach(self, server: CapsuleServer, worker: DataWorker) -> None:
        """Whom commands go back to; before the worker starts."""
        self._server, self._worker = server, worker

    @property
    def low_water_blocks(self) -> int:
        """Free slots of memory below which ``press`` is called."""
        return self._low_water_blocks

    @property
    def notices(self) -> Notices:
        """Which chains are told on."""
        return self._notices

    def notice(self, chain: KeyArray) -> None:
        """Tell a chain on."""
        self._thread.notice(chain)

    def take(self, awaited: AwaitedBlocks) -> None:
        """Have it done, and then let the server resume the command."""
        self._thread.take(awaited, self._resume)

    def press(self) -> None:
        """A command has found few slots free."""
        self._thread.press()

    def _resume(
        self, awaited: AwaitedBlocks, then: Callable[[], None], *, succeeded: bool = True
    ) -> None:
        """Called in the tiers' thread."""
        assert self._worker is not None
        try:
            future = self._worker.call(partial(self._resume_here, awaited, succeeded=succeeded))
        except WorkerDeadError:
            then()  # its sessions ended with it
        else:
            future.add_done_callback(lambda _: then())

    def _resume_here(self, awaited: AwaitedBlocks, *, succeeded: bool) -> None:
        """Called in the lane's thread: only now is it known when the command goes on."""
        assert self._server is not None
        self._server.resume(awaited, self._clock(), succeeded=succeeded)
