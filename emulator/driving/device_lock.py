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
    """

    def __init__(self, wanted: int, wake_holder: Callable[[], None]) -> None:
        self._wanted = wanted
        self._wake_holder = wake_holder
        self._turnstile = threading.Lock()
        self._main = threading.Lock()
        self._owner = 0
        self._depth = 0

    def __enter__(self) -> None:
        here = threading.get_ident()
        if self._owner != here:
            if not self._take_at_once():
                self._wait_for_it()
            self._owner = here
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = 0
            self._main.release()

    def is_held_here(self) -> bool:
        """Whether this thread has it."""
        return self._owner == threading.get_ident()

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
