"""A lane of the agent: a port of the NIC, and the thread that serves the sessions behind it.

Lanes share the blocks. Each has queue pairs, completions and registered memory of its own, so
that their threads meet only in the store.
"""

from __future__ import annotations

from collections.abc import Callable

from dpu_agent.config import SessionsConfig
from dpu_agent.data.blocks import Blocks
from dpu_agent.data.server import CapsuleServer
from dpu_agent.runtime.worker import DataWorker, WorkerDeadError
from dpu_agent.tiers.lane_tier import LaneTier


class Lane:
    """Serves the sessions that it is given."""

    def __init__(
        self,
        blocks: Blocks,
        limits: SessionsConfig,
        *,
        boot_id: bytes,
        spin_ns: int,
        on_failure: Callable[[int, str], None],
        on_death: Callable[[BaseException], None],
        tier: LaneTier | None = None,
    ) -> None:
        """Both callbacks come from the lane's thread; see ``CapsuleServer`` and ``DataWorker``."""
        self.device = blocks.pool.device
        self.sessions = 0
        """How many it was given and has still; kept by the agent."""
        self._pool = blocks.pool
        self._died = False
        self._on_death = on_death
        self.server = CapsuleServer(
            self.device,
            blocks,
            boot_id=boot_id,
            max_sessions=limits.max_sessions,
            max_queue_depth=limits.max_queue_depth,
            on_failure=on_failure,
            colder=tier,
        )
        self.worker = DataWorker(self.server, spin_ns=spin_ns, on_death=self._note_death)
        if tier is not None:
            tier.attach(self.server, self.worker)
        self.worker.start()

    def _note_death(self, error: BaseException) -> None:
        self._died = True
        self._on_death(error)

    def nic_counters(self) -> dict[str, int]:
        """Counters of the port, asked for by the lane's thread; none when that has ended. Any other
        thread may ask."""
        try:
            return self.worker.call(self.device.counters).result()
        except WorkerDeadError:
            return {}

    def stop(self) -> None:
        """End the thread, then all that it served; the device is not used afterwards."""
        self.worker.stop()
        if not self._died:
            # Only now: the worker polls the completion queue for as long as it runs.
            self.server.close_all()
        self._pool.close()
