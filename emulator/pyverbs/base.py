"""What all objects of pyverbs have in common, and how they go: children first, always once."""

from __future__ import annotations

import errno
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, NoReturn

from emulator.pyverbs import fabric
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError
from kvlane.errors import CapacityError, ConfigError, KvlaneError, QueueFullError, VerbsError

_KEY_TAG_MASK = 0xFF


def inc_rkey(rkey: int) -> int:
    """The next key of a memory window: its lowest byte counts up, the rest names the window."""
    return (rkey & ~_KEY_TAG_MASK) | ((rkey + 1) & _KEY_TAG_MASK)


def PyverbsRDMAErrno(msg: str, code: int = errno.EINVAL) -> PyverbsRDMAError:  # noqa: N802
    """An error with the errno of the call that failed."""
    return PyverbsRDMAError(msg, code)


def not_supported(what: str) -> NoReturn:
    """Refuse what the emulated device lacks; programs know ``EOPNOTSUPP`` from other devices."""
    raise PyverbsRDMAError(f"{what}: the emulated device does not support it", errno.EOPNOTSUPP)


_ERRNO_OF: tuple[tuple[type[KvlaneError], int], ...] = (
    (QueueFullError, errno.ENOMEM),
    (CapacityError, errno.ENOMEM),
    (VerbsError, errno.EINVAL),
    (ConfigError, errno.EINVAL),
)


@contextmanager
def verbs_errors(msg: str) -> Iterator[None]:
    """Errors of the engine inside the block become ``PyverbsRDMAError`` with an errno.

    The text of ``msg`` comes first, as pyverbs has it; the engine's reason is the cause.
    """
    try:
        yield
    except KvlaneError as error:
        for cls, code in _ERRNO_OF:
            if isinstance(error, cls):
                raise PyverbsRDMAError(msg, code) from error
        raise


class PyverbsObject:
    """Root of all objects of pyverbs."""

    def __init__(self) -> None:
        self.logger = logging.getLogger(type(self).__name__)

    def set_log_level(self, val: int | str) -> None:
        """Set the level of this class's logger."""
        self.logger.setLevel(val)


class PyverbsCM(PyverbsObject):
    """An object that holds something of the device: a context manager with ``close``.

    A subclass sets ``_kind``, under which parents keep it, and overrides ``close``, which
    must bear to be called twice and on an object whose ``__init__`` has failed half way.
    """

    _kind: ClassVar[str] = ""

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release what it holds; closing again does nothing."""

    def __del__(self) -> None:
        fabric.finalize(self)


class Dependents:
    """Objects that must be closed before another; it does not keep them alive.

    ``order`` names kinds in the order in which they are closed.
    """

    def __init__(self, *order: str) -> None:
        self._sets: dict[str, weakref.WeakSet[PyverbsCM]] = {
            kind: weakref.WeakSet() for kind in order
        }

    def add(self, dependent: PyverbsCM) -> None:
        """Remember a dependent under its kind."""
        self._sets[dependent._kind].add(dependent)

    def remove(self, dependent: PyverbsCM) -> None:
        """Forget a dependent that has gone, or moved, on its own."""
        self._sets[dependent._kind].discard(dependent)

    def of_kind(self, kind: str) -> list[PyverbsCM]:
        """Those of one kind that are still alive."""
        return list(self._sets[kind])

    def close(self) -> None:
        """Close all, kind after kind."""
        for dependents in self._sets.values():
            while dependents:
                try:
                    dependent = dependents.pop()
                except KeyError:  # the last one has just been collected
                    break
                dependent.close()
