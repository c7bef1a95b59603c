"""Operations of the API and the commands they are split into, a capsule each."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from host_driver.memory import Region
from kvlane.capsule import (
    CommandFlags,
    CommandStatus,
    KeyArray,
    KeyStatus,
    Opcode,
    Response,
)
from kvlane.errors import (
    CreditError,
    DrainingError,
    KvlaneError,
    ProtocolError,
    SessionNotFoundError,
    TransferError,
)
from kvlane.limits import MAX_KEYS_PER_CAPSULE

_REFUSALS: dict[CommandStatus, type[KvlaneError]] = {
    CommandStatus.BAD_SESSION: SessionNotFoundError,
    CommandStatus.TOO_MANY_IN_FLIGHT: CreditError,
    CommandStatus.DRAINING: DrainingError,
    CommandStatus.INTERNAL: TransferError,
}
_LAST_KEY_STATUS = max(KeyStatus)
_logger = logging.getLogger(__name__)

T = TypeVar("T")
"""What a call of the API returns."""


def same_error(error: KvlaneError) -> KvlaneError:
    """A fresh error with the same text: one instance raised in two tasks mixes tracebacks."""
    return type(error)(*error.args)


def require_known_statuses(statuses: NDArray[np.uint8]) -> None:
    """``ProtocolError`` when a status is none of ``KeyStatus``."""
    if len(statuses) and statuses.max() > _LAST_KEY_STATUS:
        raise ProtocolError(f"the agent answered with key status {statuses.max()}, which is none")


@dataclass(slots=True, eq=False)
class Command:
    """The keys ``start`` to ``stop`` of an operation: what one capsule carries."""

    operation: Operation[Any]
    start: int
    stop: int
    descriptors: Any = None
    """``recarray`` of DESCRIPTOR once prepared, for operations that move blocks."""
    staged_addr: int | None = None
    """Staging held by this command."""

    @property
    def keys(self) -> KeyArray:
        """The keys of this command."""
        return self.operation.keys[self.start : self.stop]

    @property
    def span(self) -> slice:
        """Where this command's results go in those of the operation."""
        return slice(self.start, self.stop)

    def prepare(self) -> bool:
        """Make ready for sending; False while there is no staging for it."""
        return self.operation.prepare(self)

    def complete(self, response: Response) -> Command | None:
        """Take the response, which matches this command; return a command to send next.

        ``ProtocolError`` when it cannot be an answer; the command has not ended then.
        """
        return self.operation.complete(self, response)

    def abort(self, error: KvlaneError) -> None:
        """End without a response; nothing will touch the command's memory any more."""
        self.operation.abort(self, error)


@dataclass(frozen=True, slots=True)
class Request:
    """What every operation is about."""

    keys: KeyArray
    deadline_ns: int


class Operation(Generic[T]):
    """One call of the API. It ends once, when the last of its commands has ended.

    Commands are driven under the engine's lock; ``ended`` may be read by any thread. What
    ends a command may be interrupted (Ctrl-C) and is then done again, so it counts once.
    """

    opcode: ClassVar[Opcode]

    def __init__(self, request: Request) -> None:
        self.keys = request.keys
        self.deadline_ns = request.deadline_ns
        self.error: KvlaneError | None = None
        self.ended = False
        self.regions: tuple[Region, ...] = ()
        """Regions that its descriptors name; the agent must know them before."""
        self._open: set[Command] = set()
        self._callbacks: deque[Callable[[], None]] = deque()

    @property
    def flags(self) -> CommandFlags:
        """Options of every command."""
        return CommandFlags(0)

    def result(self) -> T:
        """What the call returns, once it has ended well."""
        raise NotImplementedError

    def commands(self) -> list[Command]:
        """The commands to submit first; to be called once. Without keys it ends here."""
        listed = [Command(self, start, stop) for start, stop in self._spans()]
        self._open.update(listed)
        if not listed:
            self.finish()
        return listed

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
        for command in list(self._open):
            self._end(command)
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

    def prepare(self, command: Command) -> bool:  # noqa: ARG002
        """Make a command ready for sending; False while there is no room for it."""
        return True

    def complete(self, command: Command, response: Response) -> Command | None:
        """Take a response; see ``Command.complete``."""
        following = None
        if response.status is CommandStatus.OK:
            following = self._absorb(command, response)
        else:
            self.note(self._refusal(response))
        if following is not None:
            self._open.add(following)
        self._end(command)
        return following

    def abort(self, command: Command, error: KvlaneError) -> None:
        """End a command without a response."""
        if command in self._open:
            self.note(same_error(error))
        self._end(command)

    def _spans(self) -> Iterator[tuple[int, int]]:
        for start in range(0, len(self.keys), MAX_KEYS_PER_CAPSULE):
            yield start, min(start + MAX_KEYS_PER_CAPSULE, len(self.keys))

    def _absorb(self, command: Command, response: Response) -> Command | None:
        """Check and keep the results; ``ProtocolError`` before anything is changed."""
        raise NotImplementedError

    def _release(self, command: Command) -> None:
        """Give back what ``prepare`` took."""

    def _refusal(self, response: Response) -> KvlaneError:
        kind = _REFUSALS.get(response.status, ProtocolError)
        return kind(f"the agent refused {self.opcode.name} as a whole: {response.status.name}")

    def _end(self, command: Command) -> None:
        try:
            self._release(command)
        except Exception:
            # Worse than memory that is lost to the staging is a caller who waits for ever.
            _logger.exception("what a command held could not be released")
        self._open.discard(command)
        if not self._open:
            self.finish()

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
        self._statuses = np.full(len(self.keys), KeyStatus.ABORTED, np.uint8)

    def _absorb(self, command: Command, response: Response) -> None:
        require_known_statuses(response.results)
        self._statuses[command.span] = response.results


class ExistOperation(StatusOperation[NDArray[np.bool_]]):
    """EXIST: True where the key is stored."""

    opcode = Opcode.EXIST

    def result(self) -> NDArray[np.bool_]:
        """For each key, whether it is stored."""
        stored: NDArray[np.bool_] = self._statuses == KeyStatus.OK
        return stored


class DeleteOperation(StatusOperation[NDArray[np.uint8]]):
    """DELETE: ``KeyStatus`` of each key."""

    opcode = Opcode.DELETE

    def result(self) -> NDArray[np.uint8]:
        """The statuses."""
        return self._statuses


class MatchOperation(Operation[int]):
    """MATCH: asks for the next capsule of the chain only while all before were stored."""

    opcode = Opcode.MATCH

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._matched = 0

    def result(self) -> int:
        """Length of the longest stored prefix, in keys."""
        return self._matched

    def _spans(self) -> Iterator[tuple[int, int]]:
        if len(self.keys):
            yield 0, min(len(self.keys), MAX_KEYS_PER_CAPSULE)

    def _absorb(self, command: Command, response: Response) -> Command | None:
        asked = command.stop - command.start
        if response.result > asked:
            raise ProtocolError(f"the agent matched {response.result} keys of {asked}")
        self._matched = command.start + response.result
        if response.result < asked or command.stop == len(self.keys):
            return None
        stop = min(command.stop + MAX_KEYS_PER_CAPSULE, len(self.keys))
        return Command(self, command.stop, stop)
