"""The lock of a device, which its holder knows to be wanted by others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from emulator.driving._sleep_kernels import add_to_word


class DeviceLock:
    """A reentrant lock. Who waits for it comes before its holder's next turn.

    A loop that holds it for long looks at the word at ``wanted`` and gives it free. It then
    queues behind those who waited: all take the turnstile before the lock itself.

    Finalisers and signal handlers run between any two steps of this, in the thread that takes
    the lock, and may want it too. So both locks are the interpreter's own reentrant ones.
    """

    def __init__(self, wanted: int, wake_holder: Callable[[], None]) -> None:
        self._wanted = wanted
        self._wake_holder = wake_holder
        self._turnstile = threading.RLock()
        self._main = threading.RLock()
        self._held = threading.Condition(self._main)

    def __enter__(self) -> None:
        if self._take_at_once():
            return
        if self.is_held_here():
            self._main.acquire()
        else:
            self._wait_for_it()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._main.release()

    def take_within(self, patience_s: float) -> bool:
        """Take it as ``with`` does, unless that takes too long; ``give_back`` is to follow."""
        if self._take_at_once() or (self.is_held_here() and self._main.acquire()):
            return True
        add_to_word(self._wanted, 1)
        try:
            self._wake_holder()
            if not self._turnstile.acquire(timeout=patience_s):
                return False
            try:
                return self._main.acquire(timeout=patience_s)
            finally:
                self._turnstile.release()
        finally:
            add_to_word(self._wanted, -1)

    def give_back(self) -> None:
        """What ``take_within`` took."""
        self._main.release()

    def is_held_here(self) -> bool:
        """Whether this thread has it."""
        try:
            self._held.notify(0)
        except RuntimeError:
            return False
        return True

    def _take_at_once(self) -> bool:
        if not self._turnstile.acquire(blocking=False):
            return False
        taken = self._main.acquire(blocking=False)
        self._turnstile.release()
        return taken

    def _wait_for_it(self) -> None:
        add_to_word(self._wanted, 1)
        try:
            self._wake_holder()
            with self._turnstile:
                self._main.acquire()
        finally:
            add_to_word(self._wanted, -1)
