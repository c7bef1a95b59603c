"""Runs the requests of a trace against an agent.

For each request: ask for the longest stored prefix of its blocks, retrieve and verify
that prefix, store the rest. Payload is a function of the key (see ``payload``), so no
copy is kept of what was stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from host_driver.replay import payload
from host_driver.replay.chat import BLOCK_TOKENS
from host_driver.replay.order import ArrivalOrder
from host_driver.replay.report import Latency, ReplayResult
from host_driver.replay.timeline import Timeline, quantiles_us
from host_driver.results import RetrieveResult, StoreResult
from kvlane.capsule import KeyArray, KeyStatus
from kvlane.errors import ConfigError, TransferError
from kvlane.keys import adopted_key, pack_keys
from kvlane.limits import KEY_BYTES, MAX_KEYS_PER_CAPSULE
from kvlane.trace import Request

BUFFER_BYTES = 16 << 20
"""Payload buffer of each request in flight; a longer request goes in several commands."""

RETRANSMITTED = "retransmitted_packets"
"""The NIC counter of packets sent again."""

_TIER_PREFIX = "nvme_"
_TIER_LEVELS = ("nvme_blocks", "nvme_live_bytes", "nvme_dead_bytes", "nvme_free_bytes")
"""Counters of the agent's tier of files that say how things are, rather than what happened."""


class Driver(Protocol):
    """The part of ``host_driver.Dpu`` that a replay uses."""

    @property
    def root_key(self) -> bytes:
        """The parent of the namespace's keys."""

    def alloc(self, nbytes: int) -> NDArray[np.uint8]:
        """Registered memory."""

    def free(self, memory: NDArray[np.uint8]) -> Awaitable[None]:
        """Take memory back once no transfer touches it."""

    async def match(self, keys: KeyArray) -> int:
        """Length of the longest stored prefix."""

    async def retrieve(self, keys: KeyArray, into: NDArray[np.uint8]) -> RetrieveResult:
        """Fetch blocks into the rows of an array."""

    async def store(self, keys: KeyArray, blocks: NDArray[np.uint8]) -> StoreResult:
        """Publish the rows of an array as blocks."""

    async def stats(self) -> Any:
        """The agent's ``GetStatsResponse``."""

    def counters(self) -> Mapping[str, int]:
        """Counters of the local NIC."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to replay."""

    block_bytes: int = 65536
    """Payload of every block: a multiple of 8 that fits the agent's slots."""
    concurrency: int = 8
    """Requests in flight."""

    def __post_init__(self) -> None:
        payload.check_block_bytes(self.block_bytes)
        if self.concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, not {self.concurrency}")

    @property
    def buffer_blocks(self) -> int:
        """Blocks that one command moves at most."""
        return max(1, min(MAX_KEYS_PER_CAPSULE, BUFFER_BYTES // self.block_bytes))


@dataclass(slots=True)
class _Tally:
    """What has happened so far."""

    requests: int = 0
    blocks_asked: int = 0
    blocks_hit: int = 0
    unbounded_hits: int = 0
    blocks_stored: int = 0
    blocks_refused: int = 0
    bytes_retrieved: int = 0
    verification_errors: int = 0
    match_ns: list[int] = field(default_factory=list)
    retrieve_ns: list[int] = field(default_factory=list)
    store_ns: list[int] = field(default_factory=list)
    timeline: Timeline = field(default_factory=lambda: Timeline(BLOCK_TOKENS))


@dataclass(frozen=True, slots=True)
class _Outside:
    """Counters that others keep, read before and after."""

    evicted: int
    retransmitted: int
    tier: Mapping[str, int]

    def tier_since(self, before: _Outside) -> dict[str, int]:
        """What was added since, and levels as they are."""
        return {
            name: value - (0 if name in _TIER_LEVELS else before.tier.get(name, 0))
            for name, value in self.tier.items()
        }


class _BlockKeys:
    """Keys of named blocks; each is hashed once."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._keys: dict[int, bytes] = {}

    def of(self, block_ids: Iterable[int]) -> KeyArray:
        """Keys in the order given, shape (n, 32)."""
        return pack_keys(map(self._one, block_ids))

    def _one(self, block_id: int) -> bytes:
        key = self._keys.get(block_id)
        if key is None:
            key = adopted_key(self._root, block_id.to_bytes(8, "little"))
            self._keys[block_id] = key
        return key


class Replay:
    """One replay over one driver connection."""

    def __init__(
        self,
        driver: Driver,
        options: ReplayOptions,
        on_request: Callable[[int], None] | None = None,
    ) -> None:
        """``on_request`` is called after every request with the number done."""
        self._driver = driver
        self._options = options
        self._on_request = on_request
        self._keys = _BlockKeys(driver.root_key)
        self._order = ArrivalOrder()
        self._tally = _Tally()

    async def run(self, requests: Iterable[Request]) -> ReplayResult:
        """Replay all requests. Called once.

        Raises what the trace or the driver raises, and ``TransferError`` for a key that
        ended otherwise than a cache may answer; nothing is in flight afterwards.
        """
        options = self._options
        nbytes = options.buffer_blocks * options.block_bytes
        buffers = [self._driver.alloc(nbytes) for _ in range(options.concurrency)]
        try:
            rows = [buffer.reshape(-1, options.block_bytes) for buffer in buffers]
            _compile_kernels(rows[0])
            before = await self._outside()
            start_ns = time.perf_counter_ns()
            shared = iter(requests)
            await _all_or_none([self._work(shared, buffer) for buffer in rows])
            seconds = (time.perf_counter_ns() - start_ns) / 1e9
            return self._result(before, await self._outside(), start_ns, seconds)
        finally:
            await asyncio.gather(*(self._driver.free(buffer) for buffer in buffers))

    async def _work(self, requests: Iterator[Request], buffer: NDArray[np.uint8]) -> None:
        """Take requests in their order and serve them, one at a time, until none is left."""
        for request in requests:
            # No await between taking a request and registering it: that keeps the order.
            turn = self._order.register(request.block_ids)
            try:
                for event in turn.earlier:
                    await event.wait()
                hit = 0
                if request.block_ids:
                    hit = await self._serve(self._keys.of(request.block_ids), buffer)
            finally:
                self._order.release(turn)
            self._tally.timeline.add(
                time.perf_counter_ns(), len(request.block_ids), hit, request.input_tokens
            )
            self._tally.requests += 1
            self._tally.blocks_asked += len(request.block_ids)
            self._tally.unbounded_hits += turn.unbounded_hits
            if self._on_request is not None:
                self._on_request(self._tally.requests)

    async def _serve(self, keys: KeyArray, buffer: NDArray[np.uint8]) -> int:
        """One request; how many leading blocks were there."""
        start_ns = time.perf_counter_ns()
        matched = await self._driver.match(keys)
        self._tally.match_ns.append(time.perf_counter_ns() - start_ns)
        # Blocks may be evicted after the match; those are missing like any other.
        missing = np.ones(len(keys), np.bool_)
        for first in range(0, matched, len(buffer)):
            chunk = slice(first, min(first + len(buffer), matched))
            missing[chunk] = await self._retrieve(keys[chunk], buffer)
        to_store = keys[missing]
        for first in range(0, len(to_store), len(buffer)):
            await self._store(to_store[first : first + len(buffer)], buffer)
        return int(missing.argmax()) if len(to_store) else len(keys)

    async def _retrieve(self, keys: KeyArray, buffer: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Retrieve and verify; return which of the keys are not there any more."""
        rows = buffer[: len(keys)]
        # The buffer may hold these very blocks from before: wipe it, or a transfer that
        # wrote nothing would pass for a right one.
        rows[:] = 0
        start_ns = time.perf_counter_ns()
        results = await self._driver.retrieve(keys, into=rows)
        self._tally.retrieve_ns.append(time.perf_counter_ns() - start_ns)
        _expect(results.statuses, (KeyStatus.OK, KeyStatus.NOT_FOUND), "retrieve")
        found = results.ok
        whole = found & (results.lengths == self._options.block_bytes)
        if whole.all():
            wrong = payload.verify(rows, keys)
        else:
            wrong = payload.verify(rows[whole], keys[whole]) + int((found & ~whole).sum())
        self._tally.blocks_hit += int(found.sum())
        self._tally.bytes_retrieved += int(results.lengths[found].sum())
        self._tally.verification_errors += wrong
        return ~found

    async def _store(self, keys: KeyArray, buffer: NDArray[np.uint8]) -> None:
        rows = buffer[: len(keys)]
        payload.fill(rows, keys)
        start_ns = time.perf_counter_ns()
        results = await self._driver.store(keys, rows)
        self._tally.store_ns.append(time.perf_counter_ns() - start_ns)
        statuses = results.statuses
        _expect(statuses, (KeyStatus.OK, KeyStatus.EXISTS, KeyStatus.NO_SPACE), "store")
        self._tally.blocks_stored += int((statuses == KeyStatus.OK).sum())
        self._tally.blocks_refused += int((statuses == KeyStatus.NO_SPACE).sum())

    async def _outside(self) -> _Outside:
        stats = await self._driver.stats()
        retransmitted = self._driver.counters().get(RETRANSMITTED, 0)
        counters = dict(stats.device_counters)
        retransmitted += counters.get(RETRANSMITTED, 0)
        tier = {
            name: int(counters[name]) for name in sorted(counters) if name.startswith(_TIER_PREFIX)
        }
        return _Outside(int(stats.store.evicted), int(retransmitted), tier)

    def _result(
        self, before: _Outside, after: _Outside, start_ns: int, seconds: float
    ) -> ReplayResult:
        tally = self._tally
        return ReplayResult(
            requests=tally.requests,
            blocks_asked=tally.blocks_asked,
            blocks_hit=tally.blocks_hit,
            unbounded_hits=tally.unbounded_hits,
            blocks_stored=tally.blocks_stored,
            blocks_refused=tally.blocks_refused,
            blocks_evicted=after.evicted - before.evicted,
            bytes_stored=tally.blocks_stored * self._options.block_bytes,
            bytes_retrieved=tally.bytes_retrieved,
            verification_errors=tally.verification_errors,
            retransmissions=after.retransmitted - before.retransmitted,
            match=Latency.of(tally.match_ns),
            retrieve=Latency.of(tally.retrieve_ns),
            store=Latency.of(tally.store_ns),
            seconds=seconds,
            tokens=tally.timeline.tokens(),
            windows=tally.timeline.windows(start_ns),
            latency_quantiles_us=quantiles_us(
                {"match": tally.match_ns, "retrieve": tally.retrieve_ns, "store": tally.store_ns}
            ),
            tier_counters=after.tier_since(before),
        )


def _compile_kernels(rows: NDArray[np.uint8]) -> None:
    """Use each payload kernel once, so that no compilation falls into the time measured."""
    key = np.zeros((1, KEY_BYTES), np.uint8)
    payload.fill(rows[:1], key)
    payload.verify(rows[:1], key)


def _expect(statuses: NDArray[np.uint8], allowed: Sequence[KeyStatus], command: str) -> None:
    """``TransferError`` for a status that only a broken transfer or a wrong request has."""
    for status in np.unique(statuses):
        if status not in allowed:
            raise TransferError(
                f"{command} ended with {KeyStatus(int(status)).name} for "
                f"{int((statuses == status).sum())} of {len(statuses)} blocks; "
                f"the agent's log says why"
            )


async def _all_or_none(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines together; when one fails, cancel the others and raise its error."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
