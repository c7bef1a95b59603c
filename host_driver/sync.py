"""The blocking client: the same calls as ``Dpu``, driven by the calling thread."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from host_driver.buffers import Blocks, Keys
from host_driver.commands import Operation
from host_driver.config import DriverConfig
from host_driver.opening import open_session
from host_driver.results import RetrieveResult, StoreResult
from host_driver.session import Session
from kvlane.control.v1 import control_pb2
from kvlane.keys import root_key
from kvlane.namespace import Namespace

T = TypeVar("T")


class SyncDpu:
    """A connection to an agent, made by ``connect_sync``; any thread may call.

    The calls, their arguments and their errors are those of ``Dpu``.
    """

    def __init__(self, session: Session, root: bytes) -> None:
        self._session = session
        self.root_key = root
        """The parent of the first block of every chain, for ``block_chain``."""

    def store(self, keys: Keys, blocks: Blocks, *, persistent: bool = False) -> StoreResult:
        """Publish ``blocks[i]`` under ``keys[i]``; the first writer of a key wins."""
        return self._run(self._session.store(keys, blocks, persistent=persistent))

    def retrieve(self, keys: Keys, into: Blocks) -> RetrieveResult:
        """Fetch the block of ``keys[i]`` into ``into[i]``."""
        return self._run(self._session.retrieve(keys, into))

    def match(self, keys: Keys) -> int:
        """Length in keys of the longest prefix of ``keys`` that is stored."""
        return self._run(self._session.match(keys))

    def match_each(self, chains: Sequence[Keys]) -> NDArray[np.int64]:
        """What ``match`` returns, for each of many chains, which are asked for at once."""
        return self._run(self._session.match_each(chains))

    def exist(self, keys: Keys) -> NDArray[np.bool_]:
        """For each key, whether it is stored now; this pins nothing."""
        return self._run(self._session.exist(keys))

    def delete(self, keys: Keys) -> NDArray[np.uint8]:
        """Remove blocks; ``KeyStatus`` of each key."""
        return self._run(self._session.delete(keys))

    def alloc(self, nbytes: int) -> NDArray[np.uint8]:
        """Zeroed registered memory; it, and every view of it, is transferred without copying."""
        self._session.require_open()
        return self._session.memory.alloc(nbytes)

    def register(self, memory: Any) -> None:
        """Register the caller's own memory, for transfers without copying, until ``free``."""
        self._session.require_open()
        self._session.memory.register(memory)

    def free(self, memory: Any) -> None:
        """Take back registered memory; no transfer touches it when this returns."""
        self._session.require_open()
        self._session.memory.release(self._session.memory.forget(memory))

    def stats(self) -> control_pb2.GetStatsResponse:
        """The agent's counters and gauges."""
        return self._session.stats()

    def counters(self) -> dict[str, int]:
        """Counters of this host's NIC."""
        return self._session.counters()

    @property
    def draining(self) -> bool:
        """True once the agent has said that it drains: finish, and connect elsewhere."""
        return self._session.draining

    def close(self) -> None:
        """End the session; calls in flight in other threads fail. Again does nothing."""
        self._session.close()

    def __enter__(self) -> SyncDpu:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, operation: Operation[T]) -> T:
        self._session.run(operation)
        operation.raise_error()
        return operation.result()


def connect_sync(
    target: str,
    *,
    namespace: Namespace | None = None,
    salt: bytes = b"",
    config: DriverConfig | None = None,
) -> SyncDpu:
    """Connect to the agent at ``target``; targets, arguments and errors as for ``connect``."""
    descriptor = namespace or Namespace()
    root = root_key(descriptor, salt)
    return SyncDpu(open_session(target, descriptor, config or DriverConfig()), root)
