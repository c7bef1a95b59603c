"""The agent: sessions on the control side, the lanes that serve them, and both wired up.

It lives on one asyncio loop. Whatever concerns the data path it asks of a lane's worker and
awaits; whatever the workers report comes back onto the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dpu_agent.cache.policy.base import EvictionPolicy
from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.cache.store import BlockStore
from dpu_agent.config import DEFAULT_SPIN_US, SessionsConfig, StoreConfig
from dpu_agent.control.core import (
    AgentStats,
    OpenedSession,
    RemoteRegion,
    SessionNews,
)
from dpu_agent.data.blocks import Blocks
from dpu_agent.data.pool import PayloadPool
from dpu_agent.lane import Lane
from dpu_agent.metrics.figures import AgentFigures, DataFigures, NvmeFigures, StoreFigures
from dpu_agent.metrics.tenants import TenantRows
from dpu_agent.sessions import Session, SessionTable
from dpu_agent.tiers.nvme import NvmeTier
from kvlane.errors import ConfigError, SessionNotFoundError
from kvlane.namespace import Namespace
from kvlane.seams import Clock
from kvlane.verbs.protocols import Device, QpEndpoint

_log = logging.getLogger(__name__)
T = TypeVar("T")


def open_blocks(
    devices: Sequence[Device],
    config: StoreConfig,
    index_seed: int,
    new_policy: Callable[[str, int], EvictionPolicy] = make_policy,
    *,
    is_lowest: bool = True,
) -> Sequence[Blocks]:
    """The block store of a configuration, with its memory, for each port that is to reach it.

    ``new_policy(name, slots)`` makes its eviction policy; ``is_lowest`` says that there is no tier
    below. ``ConfigError`` says what is wrong.
    """
    for device in devices:
        if config.block_bytes > device.max_message_bytes:
            raise ConfigError(
                f"store.block_bytes is {config.block_bytes}, but {device.name} moves at most "
                f"{device.max_message_bytes} bytes at once; choose smaller blocks"
            )
    capacity_blocks = config.capacity_bytes // config.block_bytes
    try:
        store = BlockStore(
            capacity_blocks=capacity_blocks,
            block_bytes=config.block_bytes,
            policy=new_policy(config.policy, capacity_blocks),
            seed=index_seed,
            # What leaves memory, or comes back to it, has to pass through.
            may_refuse=is_lowest,
        )
        buffer = devices[0].alloc(capacity_blocks * config.block_bytes)
    except (MemoryError, OSError) as error:
        raise ConfigError(
            f"store.capacity_bytes is {config.capacity_bytes}, more memory than this machine "
            f"gives; choose less"
        ) from error
    return [Blocks(store, PayloadPool(device, buffer)) for device in devices]


class Agent:
    """Implements ``dpu_agent.control.core.AgentCore`` over devices that its caller closes."""

    def __init__(
        self,
        ports: Sequence[Blocks],
        limits: SessionsConfig,
        *,
        boot_id: bytes,
        clock: Clock,
        spin_us: int = DEFAULT_SPIN_US,
        tier: NvmeTier | None = None,
    ) -> None:
        """Must be called on the loop that will use it; ``boot_id`` is new at every start.

        ``ports`` are the blocks as each port reaches them: a lane for each. ``tier`` is what lies
        below them, and is started and closed here.
        """
        self._tier = tier
        self._store = ports[0].store
        self._limits = limits
        self._boot_id = boot_id
        self._clock = clock
        self._started_at = clock()
        self._loop = asyncio.get_running_loop()
        # 31 bits of the boot id above 32 of counting: fits a signed 64-bit field anywhere.
        id_base = int.from_bytes(boot_id[:4], "big") >> 1 << 32
        self._table = SessionTable(max_sessions=limits.max_sessions, id_base=id_base)
        self._graces: dict[int, asyncio.TimerHandle] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._lane_of: dict[int, Lane] = {}
        self._tenants = TenantRows()
        self.worker_death: asyncio.Future[BaseException] = self._loop.create_future()
        """Done when a data worker has died, and the agent with it."""
        self._lanes: list[Lane] = []
        if tier is not None:
            tier.start(self._report_worker_death)
        try:
            for blocks in ports:
                self._lanes.append(self._new_lane(blocks, spin_us))
        except BaseException:
            for lane in self._lanes:
                lane.stop()
            if tier is not None:
                tier.close()
            raise

    def _new_lane(self, blocks: Blocks, spin_us: int) -> Lane:
        return Lane(
            blocks,
            self._limits,
            boot_id=self._boot_id,
            spin_ns=spin_us * 1_000,
            on_failure=self._report_failure,
            on_death=self._report_worker_death,
            tier=self._tier.new_lane() if self._tier else None,
        )

    @property
    def boot_id(self) -> bytes:
        """16 random bytes, new at every start."""
        return self._boot_id

    @property
    def device_name(self) -> str:
        """The NIC, for people."""
        return self._lanes[0].device.name

    @property
    def max_queue_depth(self) -> int:
        """Most commands of a session in flight."""
        return self._limits.max_queue_depth

    @property
    def max_block_bytes(self) -> int:
        """Bytes of a slot."""
        return self._store.block_bytes

    async def open_session(
        self,
        client_name: str,
        namespace: Namespace,
        endpoint: QpEndpoint,
        regions: Sequence[RemoteRegion],
        queue_depth: int,
    ) -> OpenedSession:
        """Attach and connect; see ``AgentCore.open_session``."""
        if namespace.block_bytes > self.max_block_bytes:
            raise ConfigError(
                f"blocks of {namespace.block_bytes} bytes do not fit this agent's slots of "
                f"{self.max_block_bytes}; start the agent with larger blocks"
            )
        depth = min(queue_depth, self.max_queue_depth)
        session_id = self._table.attach(client_name, namespace).session_id
        lane = self._take_lane(session_id)
        tenant = self._tenants.row_of(namespace.name)
        try:
            local = await _in_worker(
                lane, lambda: lane.server.open(session_id, endpoint, regions, depth, tenant)
            )
        except BaseException:
            self._table.abandon(session_id)
            self._leave_lane(session_id)
            # Cancelled, maybe: then the call may still run, and this one runs after it.
            lane.worker.call(lambda: lane.server.close(session_id))
            raise
        self._graces[session_id] = self._loop.call_later(
            self._limits.watch_grace_ms / 1000, self._grace_is_over, session_id
        )
        _log.info(
            "sessions/%d open: %s, namespace %s, %d commands in flight",
            session_id,
            client_name,
            namespace.name,
            depth,
        )
        return OpenedSession(session_id, local, depth)

    async def close_session(self, session_id: int, reason: str) -> None:
        """End a session; see ``AgentCore.close_session``."""
        session = self._table.remove(session_id)
        self._end_grace(session_id)
        # A caller that goes away must not leave half of it undone.
        await self._spawn(self._finish_closing(session, reason))

    async def register_memory(self, session_id: int, regions: Sequence[RemoteRegion]) -> None:
        """Add regions; see ``AgentCore.register_memory``."""
        self._table.get(session_id)
        lane = self._lane_of[session_id]
        await _in_worker(lane, lambda: lane.server.register(session_id, regions))

    async def deregister_memory(self, session_id: int, rkeys: Sequence[int]) -> None:
        """Take regions away; see ``AgentCore.deregister_memory``."""
        self._table.get(session_id)
        lane = self._lane_of[session_id]
        ended = asyncio.Event()

        def tell() -> None:
            self._loop.call_soon_threadsafe(ended.set)

        await _in_worker(lane, lambda: lane.server.deregister(session_id, rkeys, tell))
        await ended.wait()

    async def watch_session(self, session_id: int) -> AsyncGenerator[tuple[SessionNews, str], None]:
        """News of a session; see ``AgentCore.watch_session``."""
        session = self._table.get(session_id)
        news: asyncio.Queue[tuple[SessionNews, str]] = asyncio.Queue()
        session.watchers.append(lambda state, reason: news.put_nowait((state, reason)))
        if self._table.draining:
            session.tell(SessionNews.DRAINING, "the agent is draining")
        self._end_grace(session_id)
        state = SessionNews.OPEN
        try:
            yield state, ""
            while state is not SessionNews.CLOSED:
                state, reason = await news.get()
                yield state, reason
        finally:
            if state is not SessionNews.CLOSED:
                await self._spawn(self._close_if_open(session_id, "its watcher went away"))

    async def stats(self) -> AgentStats:
        """A snapshot; the store's part of it is consistent."""
        commands: Counter[str] = Counter()
        counters: Counter[str] = Counter()
        for lane in self._lanes:
            executed, counted = await _in_worker(lane, partial(_counts_of, lane))
            commands.update(executed)
            counters.update(counted)
        if self._tier is not None:
            counters.update(await asyncio.to_thread(self._tier.counters))
        return AgentStats(
            uptime_ms=(self._clock() - self._started_at) // 1_000_000,
            sessions=len(self._table),
            draining=self._table.draining,
            store=self._store.stats(),
            namespaces=self._table.namespaces(),
            commands=dict(commands),
            device_counters=dict(counters),
        )

    def figures(self) -> AgentFigures:
        """A snapshot for metrics, until the agent stops. Any thread but the agent's own may ask."""
        return AgentFigures(
            boot_id=self._boot_id,
            device=self.device_name,
            uptime_ns=self._clock() - self._started_at,
            sessions=len(self._table),
            draining=self._table.draining,
            tenants=self._tenants.names(),
            data=_figures_of(self._lanes),
            memory=StoreFigures.of(self._store),
            nvme=_figures_below(self._tier) if self._tier is not None else None,
        )

    async def drain(self) -> int:
        """Refuse new sessions from now on; return how many are open."""
        self._table.drain()
        return len(self._table)

    async def end_sessions(self, reason: str) -> None:
        """Drain, and close every session that is still open."""
        await self.drain()
        for session_id in self._table.ids():
            await self._close_if_open(session_id, reason)

    async def stop(self) -> None:
        """End the sessions and the workers; the devices are not used afterwards."""
        try:
            if not self.worker_death.done():
                await self.end_sessions("the agent is stopping")
        finally:
            for lane in self._lanes:
                await asyncio.to_thread(lane.stop)
            if self._tier is not None:
                await asyncio.to_thread(self._tier.close)

    def _take_lane(self, session_id: int) -> Lane:
        """The lane with the fewest sessions, for one more."""
        lane = min(self._lanes, key=lambda lane: lane.sessions)
        lane.sessions += 1
        self._lane_of[session_id] = lane
        return lane

    def _leave_lane(self, session_id: int) -> Lane:
        """A session has ended, or will once its lane has been told."""
        lane = self._lane_of.pop(session_id)
        lane.sessions -= 1
        return lane

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        """Start ``work``; cancelling the future that is returned does not cancel it."""
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return asyncio.shield(task)

    async def _finish_closing(self, session: Session, reason: str) -> None:
        lane = self._leave_lane(session.session_id)
        await _in_worker(lane, lambda: lane.server.close(session.session_id))
        _log.info("sessions/%d closed: %s", session.session_id, reason)
        session.tell(SessionNews.CLOSED, reason)

    async def _close_if_open(self, session_id: int, reason: str) -> None:
        try:
            await self.close_session(session_id, reason)
        except SessionNotFoundError:
            _log.debug("sessions/%d was closed already", session_id)

    def _end_grace(self, session_id: int) -> None:
        grace = self._graces.pop(session_id, None)
        if grace is not None:
            grace.cancel()

    def _grace_is_over(self, session_id: int) -> None:
        del self._graces[session_id]
        reason = f"nobody watched it within {self._limits.watch_grace_ms} ms"
        self._spawn(self._close_if_open(session_id, reason))

    def _report_failure(self, session_id: int, reason: str) -> None:
        """Called in the worker: a session has ended by itself."""
        self._loop.call_soon_threadsafe(self._session_failed, session_id, reason)

    def _session_failed(self, session_id: int, reason: str) -> None:
        self._end_grace(session_id)
        if session_id in self._table:
            self._leave_lane(session_id)
            self._table.remove(session_id).tell(SessionNews.CLOSED, reason)

    def _report_worker_death(self, error: BaseException) -> None:
        """Called in the worker, as the last thing it does."""
        self._loop.call_soon_threadsafe(self._worker_died, error)

    def _worker_died(self, error: BaseException) -> None:
        if not self.worker_death.done():
            self.worker_death.set_result(error)


async def _in_worker(lane: Lane, function: Callable[[], T]) -> T:
    return await asyncio.wrap_future(lane.worker.call(function))


def _figures_of(lanes: Sequence[Lane]) -> DataFigures:
    """What the lanes have counted, together."""
    commands: Counter[str] = Counter()
    nic_counters: Counter[str] = Counter()
    for lane in lanes:
        commands.update(lane.server.executed)
        nic_counters.update(lane.nic_counters())
    return DataFigures(
        commands=commands,
        latencies=np.sum([lane.server.counts.latencies for lane in lanes], axis=0),
        tenants=np.sum([lane.server.counts.tenants for lane in lanes], axis=0),
        in_flight=sum(lane.server.in_flight for lane in lanes),
        unread=sum(lane.server.unread for lane in lanes),
        nic_counters=nic_counters,
    )


def _figures_below(tier: NvmeTier) -> NvmeFigures:
    return NvmeFigures(
        StoreFigures.of(tier.store), tier.moves, tier.guesses, tier.compression, tier.usage()
    )


def _counts_of(lane: Lane) -> tuple[dict[str, int], dict[str, int]]:
    """Commands by opcode and counters of the port; called in the lane's worker."""
    return lane.server.executed, lane.device.counters()
