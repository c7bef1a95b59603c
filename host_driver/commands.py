"""Operations of the API, and how they end; what they send are jobs of commands."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from host_driver.jobs import Batch, Job, full_spans
from host_driver.memory import Region
from kvlane.capsule import CommandStatus, KeyArray, KeyStatus, Opcode
from kvlane.errors import (
    CreditError,
    DrainingError,
    KvlaneError,
    ProtocolError,
    SessionNotFoundError,
    TransferError,
)

_REFUSALS: dict[CommandStatus, type[KvlaneError]] = {
    CommandStatus.BAD_SESSION: SessionNotFoundError,
    CommandStatus.TOO_MANY_IN_FLIGHT: CreditError,
    CommandStatus.DRAINING: DrainingError,
    CommandStatus.INTERNAL: TransferError,
}
_ABORTED = int(KeyStatus.ABORTED)
_OK = int(KeyStatus.OK)
_logger = logging.getLogger(__name__)

T = TypeVar("T")
"""What a call of the API returns."""


def same_error(error: KvlaneError) -> KvlaneError:
    """A fresh error with the same text: one instance raised in two tasks mixes tracebacks."""
    return type(error)(*error.args)


@dataclass(frozen=True, slots=True)
class Request:
    """What every operation is about."""

    keys: KeyArray
    deadline_ns: int


class Operation(Generic[T]):
    """One call of the API. It ends once, when the last of its jobs has ended.

    Jobs are driven under the engine's lock; ``ended`` may be read by any thread. What
    ends a job may be interrupted (Ctrl-C) and is then done again, so it counts once.
    """

    opcode: ClassVar[Opcode]
    needs_staging = False
    """True where ``next_job`` depends on the room of the staging."""

    def __init__(self, request: Request) -> None:
        self.keys = request.keys
        self.deadline_ns = request.deadline_ns
        self.error: KvlaneError | None = None
        self.ended = False
        self.regions: tuple[Region, ...] = ()
        """Regions that its descriptors name; the agent must know them before."""
        self._open: set[Job] = set()
        self._callbacks: deque[Callable[[], None]] = deque()

    def result(self) -> T:
        """What the call returns, once it has ended well."""
        raise NotImplementedError

    @property
    def exhausted(self) -> bool:
        """True when ``next_job`` has none any more."""
        raise NotImplementedError

    def next_job(self) -> Job | None:
        """A job to submit now; None while there is no room for it, or when there is no more."""
        raise NotImplementedError

    @property
    def open_jobs(self) -> Iterable[Job]:
        """Jobs that were given out and have not ended."""
        return self._open

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call back at the end, in whichever thread brings it about; before submission only.

        The call may be repeated.
        """
        self._callbacks.append(callback)

    def give_up(self, error: KvlaneError) -> None:
        """End with whatever of it is open, before or after submission.

        Nothing will touch its memory any more. What has ended already stays as it is.
        """
        if not self.ended:
            self.note(error)
        for job in list(self._open):
            self._close(job)
        self.finish()

    def note(self, error: KvlaneError) -> None:
        """Fail with ``error`` at the end, unless it is to fail with an earlier one."""
        if self.error is None:
            self.error = error

    def raise_error(self) -> None:
        """Raise what the operation failed with, if it did, with what is known in ``results``."""
        if self.error is not None:
            self.error.results = self.result()
            raise self.error

    def complete(self, job: Job) -> None:
        """All commands of a job are answered."""
        if job.refusal:
            self.note(self._refusal(CommandStatus(job.refusal)))
        self._close(job)
        self.finish_if_done()

    def finish_if_done(self) -> None:
        """End when no job is open and none is to follow."""
        if not self._open and self.exhausted:
            self.finish()

    def _opened(self, job: Job) -> Job:
        self._open.add(job)
        return job

    def _settle(self, job: Job) -> None:
        """Do what is to be done with what came, before the job's memory is given back."""

    def _release(self, job: Job) -> None:
        """Give back what the job holds."""

    def _refusal(self, status: CommandStatus) -> KvlaneError:
        kind = _REFUSALS.get(status, ProtocolError)
        return kind(f"the agent refused {self.opcode.name} as a whole: {status.name}")

    def _close(self, job: Job) -> None:
        try:
            self._settle(job)
            self._release(job)
        except Exception:
            # Worse than memory that is lost to the staging is a caller who waits for ever.
            _logger.exception("what a command held could not be released")
        self._open.discard(job)

    def finish(self) -> None:
        """End, with nothing open; for operations whose commands ended as those of others."""
        self.ended = True
        while self._callbacks:
            try:
                self._callbacks[0]()
            except Exception:
                _logger.exception("a callback at the end of an operation failed")
            self._callbacks.popleft()


class StatusOperation(Operation[T]):
    """One status byte a key comes back."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._statuses = np.full(len(self.keys), _ABORTED, np.uint8)
        self._begun = False

    @property
    def exhausted(self) -> bool:
        """True once the one job is out."""
        return self._begun or not len(self.keys)

    def next_job(self) -> Job | None:
        """All commands at once."""
        if self.exhausted:
            return None
        batch = Batch(self.keys, full_spans(len(self.keys)), self._statuses)
        job = self._opened(Job(self.opcode, batch))
        self._begun = True
        return job


class ExistOperation(StatusOperation[NDArray[np.bool_]]):
    """EXIST: True where the key is stored."""

    opcode = Opcode.EXIST

    def result(self) -> NDArray[np.bool_]:
        """For each key, whether it is stored."""
        stored: NDArray[np.bool_] = self._statuses == _OK
        return stored


class DeleteOperation(StatusOperation[NDArray[np.uint8]]):
    """DELETE: ``KeyStatus`` of each key."""

    opcode = Opcode.DELETE

    def result(self) -> NDArray[np.uint8]:
        """The statuses."""
        return self._statuses
