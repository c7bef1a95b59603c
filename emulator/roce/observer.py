"""Who watches an engine. The engine works in compiled code, which cannot call out; so an
observer is told before and after, and sees by comparison what has happened between."""

from __future__ import annotations

from typing import Protocol

from emulator.link.frames import Burst
from kvlane.verbs.enums import QpState


class EngineObserver(Protocol):
    """Is called by a ``RoceEngine`` and its ``QpTable`` while it is set; it must not raise.

    An engine that is observed takes received frames one at a time, so that what changes is
    the work of one frame.
    """

    def before_receive(self, burst: Burst, index: int) -> None:
        """Frame ``index`` of a burst is about to be taken."""

    def after_receive(self, burst: Burst, index: int, now: int) -> None:
        """It has been taken."""

    def before_transmit(self) -> None:
        """A burst is about to be filled."""

    def after_transmit(self, burst: Burst, now: int) -> None:
        """It has been filled."""

    def state_modified(self, index: int, before: QpState) -> None:
        """A modify has succeeded on queue pair ``index``, which was in state ``before``."""
