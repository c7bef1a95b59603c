"""The asynchronous client: every call is awaited, and many may be in flight at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from host_driver.buffers import Blocks, Keys
from host_driver.commands import Operation
from host_driver.config import DriverConfig
from host_driver.endings import Endings
from host_driver.opening import Opening
from host_driver.results import RetrieveResult, StoreResult
from host_driver.session import Session
from kvlane.control.v1 import control_pb2
from kvlane.keys import root_key
from kvlane.namespace import Namespace

T = TypeVar("T")


class Dpu:
    """A connection to an agent, made by ``connect``.

    Calls may overlap freely and end in any order. Cancelling a call lets go of the result
    only: its buffers stay with the transfer until that has ended, and must not be reused
    before (``free`` or ``close`` wait for it).
    """

    def __init__(self, session: Session, root: bytes) -> None:
        self._session = session
        self._endings: Endings | None = None
        """Of the loop that called last."""
        self.root_key = root
        """The parent of the first block of every chain, for ``block_chain``."""

    async def store(self, keys: Keys, blocks: Blocks, *, persistent: bool = False) -> StoreResult:
        """Publish ``blocks[i]`` under ``keys[i]``; the first writer of a key wins.

        ``blocks`` is a list of buffers (bytes, arrays, CPU tensors) or one array with a row
        a block. What lies in registered memory is read in place by the agent, everything
        else is copied once. ``ConfigError`` names a block that cannot be used;
        ``TransferError`` and ``DeadlineError`` say that the connection is gone; what is
        known of each key is in their ``results``.

        ``persistent`` waits until the blocks survive a crash of the agent; a block that is there
        but would not is NOT_PERSISTENT.
        """
        return await self._run(self._session.store(keys, blocks, persistent=persistent))

    async def retrieve(self, keys: Keys, into: Blocks) -> RetrieveResult:
        """Fetch the block of ``keys[i]`` into ``into[i]``, of the kinds that ``store`` takes.

        A buffer may be longer than its block; ``lengths`` of the result says how long that
        is. Errors as for ``store``.
        """
        return await self._run(self._session.retrieve(keys, into))

    async def match(self, keys: Keys) -> int:
        """Length in keys of the longest prefix of ``keys`` that is stored."""
        return await self._run(self._session.match(keys))

    async def match_each(self, chains: Sequence[Keys]) -> NDArray[np.int64]:
        """What ``match`` returns, for each of many chains, which are asked for at once."""
        return await self._run(self._session.match_each(chains))

    async def exist(self, keys: Keys) -> NDArray[np.bool_]:
        """For each key, whether it is stored now; this pins nothing."""
        return await self._run(self._session.exist(keys))

    async def delete(self, keys: Keys) -> NDArray[np.uint8]:
        """Remove blocks; ``KeyStatus`` of each key."""
        return await self._run(self._session.delete(keys))

    def alloc(self, nbytes: int) -> NDArray[np.uint8]:
        """Zeroed registered memory; it, and every view of it, is transferred without copying."""
        self._session.require_open()
        return self._session.memory.alloc(nbytes)

    def register(self, memory: Any) -> None:
        """Register the caller's own memory, for transfers without copying, until ``free``.

        ``ConfigError`` when it overlaps registered memory, ``CapacityError`` beyond the
        number of regions of a session.
        """
        self._session.require_open()
        self._session.memory.register(memory)

    def free(self, memory: Any) -> asyncio.Future[None]:
        """Take back what ``alloc`` returned or ``register`` was given; begins at once.

        Await the result to know that no transfer touches the memory any more.
        """
        self._session.require_open()
        region = self._session.memory.forget(memory)
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._session.executor, self._session.memory.release, region)

    async def stats(self) -> control_pb2.GetStatsResponse:
        """The agent's counters and gauges."""
        self._session.require_open()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._session.executor, self._session.stats)

    def counters(self) -> dict[str, int]:
        """Counters of this host's NIC."""
        return self._session.counters()

    @property
    def draining(self) -> bool:
        """True once the agent has said that it drains: finish, and connect elsewhere."""
        return self._session.draining

    async def close(self) -> None:
        """End the session; calls in flight fail. Closing again does nothing."""
        await asyncio.get_running_loop().run_in_executor(None, self._session.close)

    async def __aenter__(self) -> Dpu:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self, operation: Operation[T]) -> T:
        loop = asyncio.get_running_loop()
        endings = self._endings
        if endings is None or endings.loop is not loop:
            endings = self._endings = Endings(loop)
        ended: asyncio.Future[None] = loop.create_future()
        operation.when_ended(partial(endings.tell, ended))
        self._session.start(operation)
        await ended
        operation.raise_error()
        return operation.result()


async def connect(
    target: str,
    *,
    namespace: Namespace | None = None,
    salt: bytes = b"",
    config: DriverConfig | None = None,
) -> Dpu:
    """Connect to the agent at ``target``: ``host:port``, or ``emulated:`` for a private one.

    ``emulated:?capacity=1GiB&block_bytes=64KiB&faults=drop=0.01&seed=7`` sets options of
    the emulated agent. ``salt`` is the tenant's secret in every key. ``ConfigError``,
    ``AgentUnreachableError`` (the text says how to start an agent),
    ``NamespaceMismatchError`` (it names the field), ``DrainingError``, ``CapacityError``.

    The NIC gives a peer up that does not acknowledge for some seconds (with an emulated NIC
    3.6 s at the earliest). Neither process may be paused for longer while calls are in
    flight, whatever ``operation_timeout_ms`` is: their ``TransferError`` asks to connect anew.
    """
    descriptor = namespace or Namespace()
    root = root_key(descriptor, salt)
    loop = asyncio.get_running_loop()
    opening = Opening(target, descriptor, config or DriverConfig())
    try:
        return Dpu(await loop.run_in_executor(None, opening.run), root)
    except asyncio.CancelledError:
        opening.abandon()
        raise
