"""Links as functions by address, so that a NIC moves bursts without coming back to Python.

A link that is compiled offers its own ``LinkCalls``. Every other one, wrappers above all, is
reached by the same table through its methods, at the price of a call into the interpreter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from emulator.link.frames import Burst, Link
from kvlane.calls import Callbacks


class LinkCalls(NamedTuple):
    """Addresses of functions of four integers (``kvlane.calls``); those not named are 0.

    Bursts are named by ``Burst.address``. A negative answer is an exception that was kept.
    """

    context: int
    """First argument of every function."""
    send: int
    """(context, burst): how many frames the link took, a prefix."""
    receive: int
    """(context, burst that is empty, now ns): how many frames arrived."""
    next_release: int
    """(context, now ns): as ``Link.next_release``, or 0. An address of 0: never."""


class CompiledLink(ABC):
    """A link with a table of its own."""

    @property
    @abstractmethod
    def calls(self) -> LinkCalls:
        """Valid as long as the link lives."""


def calls_of(link: Link, bursts: tuple[Burst, ...], callbacks: Callbacks) -> LinkCalls:
    """The table of a link. ``bursts`` are those that it will be called with.

    What a link that is not compiled raises is kept by ``callbacks``, which must outlive the table.
    """
    if isinstance(link, CompiledLink):
        return link.calls
    by_address = {burst.address: burst for burst in bursts}

    def send(_context: int, burst: int, _second: int, _third: int) -> int:
        return link.send(by_address[burst])

    def receive(_context: int, burst: int, now: int, _third: int) -> int:
        return link.receive(by_address[burst], now)

    def next_release(_context: int, now: int, _second: int, _third: int) -> int:
        return link.next_release(now) or 0

    return LinkCalls(0, *(callbacks.add(step) for step in (send, receive, next_release)))
