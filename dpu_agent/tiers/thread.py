"""The thread that drives a mover for the lanes of an agent.

It sleeps until the medium has done something, a lane hands over a command, or memory runs short,
which lanes tell too. It never holds up a lane: what it has for one it leaves in the lane's inbox.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from dpu_agent.data.awaited import AwaitedBlocks
from dpu_agent.tiers.mover import TierMover
from dpu_agent.tiers.promotion import Wish
from kvlane.capsule import KeyArray, Opcode
from kvlane.seams import Clock

_log = logging.getLogger(__name__)


class Resume(Protocol):
    """Lets a lane go on with a command."""

    def __call__(
        self, awaited: AwaitedBlocks, then: Callable[[], None], *, succeeded: bool = True
    ) -> None:
        """Call ``then`` when it has, or never will."""


class TierThread:
    """Owns a mover."""

    def __init__(
        self,
        mover: TierMover,
        medium_fd: int,
        clock: Clock,
        on_death: Callable[[BaseException], None],
    ) -> None:
        """``on_death(error)`` runs in the thread, as the last thing it does."""
        self._mover = mover
        self._clock = clock
        self._on_death = on_death
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._selector.register(medium_fd, selectors.EVENT_READ)
        self._open = True
        self._thread = threading.Thread(target=self._run, name="kvlane-tiers", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it; commands that await blocks are not answered any more."""
        self._post(self._end)
        self._thread.join()
        self._selector.close()
        os.close(self._wake_fd)

    def take(self, awaited: AwaitedBlocks, resume: Resume) -> None:
        """A lane hands over a command. Any thread may call."""
        self._post(partial(self._begin, awaited, resume))

    def press(self) -> None:
        """Memory may run short. Any thread may call."""
        self._post(_nothing)

    def notice(self, chain: KeyArray) -> None:
        """A MATCH has asked for a chain. Any thread may call."""
        self._post(partial(self._note, chain))

    def _note(self, chain: KeyArray) -> None:
        self._mover.notice(chain, self._clock())

    def _post(self, call: Callable[[], None]) -> None:
        self._inbox.append(call)
        os.eventfd_write(self._wake_fd, 1)

    def _end(self) -> None:
        self._open = False

    def _begin(self, awaited: AwaitedBlocks, resume: Resume) -> None:
        now = self._clock()
        if awaited.opcode is Opcode.DELETE:
            self._mover.delete(awaited.keys, partial(self._end_delete, awaited, resume), now)
        elif awaited.opcode is Opcode.STORE:
            self._mover.keep(awaited.keys, partial(resume, awaited, _nothing))
        else:
            self._mover.want(awaited.keys, partial(self._grant, awaited, resume), now)

    def _end_delete(self, awaited: AwaitedBlocks, resume: Resume, succeeded: bool) -> None:
        resume(awaited, _nothing, succeeded=succeeded)

    def _grant(self, awaited: AwaitedBlocks, resume: Resume, wish: Wish) -> None:
        """The blocks have come; they stay in memory until the command has them."""
        resume(awaited, partial(self._post, partial(self._mover.end, wish)))

    def _run(self) -> None:
        try:
            while self._open:
                self._selector.select(self._timeout_s())
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
                while self._inbox:
                    self._inbox.popleft()()
                self._mover.step(self._clock())
        except BaseException as error:
            _log.critical("the thread that moves blocks between tiers has died", exc_info=True)
            self._on_death(error)

    def _timeout_s(self) -> float | None:
        """How long nothing is due by itself; None is for ever."""
        wait_ns = self._mover.next_step_in_ns(self._clock())
        return None if wait_ns is None else wait_ns / 1e9


def _nothing() -> None:
    """What ``press`` has to say: that there is something to look at."""
