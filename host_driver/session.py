"""A session with an agent: what the asynchronous and the blocking client have in common."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from host_driver.buffers import BlockList, Blocks, Keys, block_list, key_array, key_chains
from host_driver.commands import (
    DeleteOperation,
    ExistOperation,
    Operation,
    Request,
    same_error,
)
from host_driver.config import DriverConfig
from host_driver.control import ControlClient, ControlSession
from host_driver.data_path import DataPath
from host_driver.engine import Engine
from host_driver.matching import MatchEachOperation, MatchOperation
from host_driver.oversized import OversizedTransfers
from host_driver.registrations import Registrations
from host_driver.results import RetrieveResult, StoreResult
from host_driver.session_watch import SessionState
from host_driver.transfer import Placement, RetrieveOperation, StoreOperation, Transfer
from kvlane.control.v1 import control_pb2
from kvlane.errors import ConfigError, KvlaneError, SessionError, TransferError
from kvlane.namespace import Namespace

_CONTROL_THREADS = 2
_CLOSED = "this connection is closed; connect again"

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class Session:
    """Operations, registered memory and state of one connection. Any thread may call.

    It takes ``undo`` over, which releases what the opening has made.
    """

    def __init__(
        self,
        namespace: Namespace,
        config: DriverConfig,
        control: ControlClient,
        opened: ControlSession,
        path: DataPath,
        engine: Engine,
        undo: ExitStack,
    ) -> None:
        self.executor = ThreadPoolExecutor(_CONTROL_THREADS, "kvlane-control")
        """Where calls of the control plane wait, so that nobody else does."""
        self._oversized_thread = ThreadPoolExecutor(1, "kvlane-oversized")
        self.memory = Registrations(
            path.device,
            partial(control.register_memory, opened.name),
            partial(control.deregister_memory, opened.name),
            self._why_ended,
        )
        self._oversized = OversizedTransfers(self.memory, engine.run, time.monotonic_ns)
        self.draining = False
        self._namespace = namespace
        self._block_bytes = namespace.block_bytes
        """Of every block, or 0 where blocks may differ."""
        self._config = config
        self._control = control
        self._opened = opened
        self._path = path
        self._engine = engine
        self._closed = False
        self._close_lock = threading.Lock()
        undo.callback(self.memory.close)
        undo.callback(self.executor.shutdown)
        undo.callback(self._oversized_thread.shutdown)
        undo.callback(engine.stop, SessionError("closed before the operation ended"))
        control.watch(opened.name, self._on_news)
        self._undo = undo.pop_all()

    # Operations

    def store(
        self, keys: Keys, blocks: Blocks, *, persistent: bool = False
    ) -> Operation[StoreResult]:
        """A STORE of ``blocks[i]`` under ``keys[i]``."""
        listed = block_list(blocks, name="blocks", writable=False)
        if self._block_bytes:
            self._require_lengths(listed, "blocks", listed.lengths == self._block_bytes)
        return self._transfer(StoreOperation, keys, listed, "blocks", persistent=persistent)

    def retrieve(self, keys: Keys, into: Blocks) -> Operation[RetrieveResult]:
        """A RETRIEVE of ``keys[i]`` into ``into[i]``."""
        listed = block_list(into, name="into", writable=True)
        if self._block_bytes:
            self._require_lengths(listed, "into", listed.lengths >= self._block_bytes)
        return self._transfer(RetrieveOperation, keys, listed, "into")

    def match(self, keys: Keys) -> Operation[int]:
        """A MATCH of a key chain."""
        return MatchOperation(self._request(keys))

    def match_each(self, chains: Sequence[Keys]) -> Operation[NDArray[np.int64]]:
        """A MATCH of each of many key chains."""
        self.require_open()
        return MatchEachOperation(key_chains(chains), self._deadline_ns())

    def exist(self, keys: Keys) -> Operation[NDArray[np.bool_]]:
        """An EXIST of each key."""
        return ExistOperation(self._request(keys))

    def delete(self, keys: Keys) -> Operation[NDArray[np.uint8]]:
        """A DELETE of each key."""
        return DeleteOperation(self._request(keys))

    def start(self, operation: Operation[Any]) -> None:
        """Set an operation going and return at once; its callbacks come from other threads."""
        if _is_oversized(operation):
            thread, work = self._oversized_thread, self.run
        elif not _agent_knows(operation):
            thread, work = self.executor, self._announce_and_submit
        else:
            self._engine.submit(operation)
            return
        try:
            thread.submit(self._contained, work, operation)
        except RuntimeError:  # shut down since the operation was made
            operation.give_up(SessionError(_CLOSED))

    def run(self, operation: Operation[Any]) -> None:
        """Drive an operation to its end in the calling thread."""
        if _is_oversized(operation):
            self._oversized.run(operation)
            return
        if not _agent_knows(operation):
            self._announce(operation)
        if not operation.ended:
            self._engine.run(operation)

    # State

    def counters(self) -> dict[str, int]:
        """Counters of the host's NIC."""
        self.require_open()
        return self._path.device.counters()

    def stats(self) -> control_pb2.GetStatsResponse:
        """The agent's counters and gauges."""
        self.require_open()
        return self._control.stats()

    def require_open(self) -> None:
        """``SessionError`` once closed."""
        if self._closed:
            raise SessionError(_CLOSED)

    def close(self) -> None:
        """End the session at the agent, then release everything. Again is harmless."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            try:
                # No transfer is under way when this returns, if the agent is there to answer.
                self._control.close_session(self._opened.name)
            except KvlaneError as error:
                _logger.info("the session ended without the agent: %s", error)
            self._undo.close()

    def _on_news(self, state: SessionState, reason: str) -> None:
        if state is SessionState.DRAINING:
            self.draining = True
            _logger.info("the agent is draining: %s", reason)
        elif state.terminal and not self._closed:
            self._engine.fail(TransferError(f"the session has ended ({reason}); connect anew"))

    def _request(self, keys: Keys) -> Request:
        self.require_open()
        return Request(key_array(keys), self._deadline_ns())

    def _deadline_ns(self) -> int:
        return time.monotonic_ns() + self._config.operation_timeout_ms * 1_000_000

    def _require_lengths(self, blocks: BlockList, name: str, right: NDArray[np.bool_]) -> None:
        """``ConfigError`` about the first block that is not right for the namespace."""
        wrong = np.flatnonzero(~right)
        if len(wrong):
            raise ConfigError(
                f"{name}[{wrong[0]}] has {blocks.lengths[wrong[0]]} bytes; blocks of namespace "
                f"{self._namespace.name!r} have {self._block_bytes}"
            )

    def _transfer(
        self,
        kind: type[Transfer[T]],
        keys: Keys,
        blocks: BlockList,
        name: str,
        *,
        persistent: bool = False,
    ) -> Transfer[T]:
        request = self._request(keys)
        if len(request.keys) != len(blocks):
            raise ConfigError(f"{len(request.keys)} keys, but {name} has {len(blocks)} buffers")
        staging = self._path.staging
        located = self.memory.locate(blocks)
        transfer = kind(
            request,
            Placement(blocks, located.rkeys, staging),
            checksums=self._config.verify_checksums,
            persistent=persistent,
        )
        transfer.regions = located.regions
        return transfer

    def _contained(self, work: Callable[[Operation[Any]], None], operation: Operation[Any]) -> None:
        """Do work on an operation; whatever it raises, whoever waits must hear of it."""
        try:
            work(operation)
        except Exception as error:
            _logger.exception("an operation could not be carried out")
            operation.give_up(TransferError(f"the driver failed: {error!r}"))

    def _announce_and_submit(self, operation: Operation[Any]) -> None:
        self._announce(operation)
        if not operation.ended:
            self._engine.submit(operation)

    def _announce(self, operation: Operation[Any]) -> None:
        """Tell the agent of the regions that an operation uses; end it if that fails."""
        try:
            self.memory.announce(operation.regions)
        except KvlaneError as error:
            operation.give_up(error)

    def _why_ended(self) -> KvlaneError | None:
        if self._closed:
            return SessionError(_CLOSED)
        failure = self._engine.failure
        return None if failure is None else same_error(failure)


def _agent_knows(operation: Operation[Any]) -> bool:
    for region in operation.regions:  # noqa: SIM110  (a generator costs more than the look)
        if not region.announced:
            return False
    return True


def _is_oversized(operation: Operation[Any]) -> TypeGuard[Transfer[Any]]:
    if not operation.needs_staging or not isinstance(operation, Transfer):
        return False
    return bool(operation.placement.oversized.any())
