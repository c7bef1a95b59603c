"""How an event loop hears of operations that end in another thread: of many in one call."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class Endings:
    """Resolves futures of one loop. Waking a loop costs a system call, so all that end before
    it has woken are told by the same one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ended: deque[asyncio.Future[None]] = deque()
        self._told = False
        """True while the loop is to come for what has ended."""

    def tell(self, future: asyncio.Future[None]) -> None:
        """Resolve a future in its loop. Any thread may call."""
        self._ended.append(future)
        if self._told:
            return
        self._told = True
        # The loop may be closed by now, when its task was cancelled before.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._told = False  # first: what ends from here on is told anew
        while self._ended:
            future = self._ended.popleft()
            if not future.done():
                future.set_result(None)
