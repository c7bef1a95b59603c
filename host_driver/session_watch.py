"""The stream that holds a session open, followed by a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Protocol

import grpc

from kvlane.control.v1 import control_pb2
from kvlane.errors import KvlaneError, SessionNotFoundError


class SessionState(Enum):
    """What the host knows of its session."""

    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"
    """The agent, or this client, has closed the session."""
    LOST = "lost"
    """The stream broke: the agent died or cannot be reached; it closes the session itself."""

    @property
    def terminal(self) -> bool:
        """True when no news follow."""
        return self in (SessionState.CLOSED, SessionState.LOST)


OnNews = Callable[[SessionState, str], None]
"""Called with a state and the reason for it, in the watch's thread."""

_STATES = {
    control_pb2.SESSION_STATE_OPEN: SessionState.OPEN,
    control_pb2.SESSION_STATE_DRAINING: SessionState.DRAINING,
    control_pb2.SESSION_STATE_CLOSED: SessionState.CLOSED,
}


class WatchCall(Protocol):
    """A streaming call of gRPC."""

    def __iter__(self) -> Iterator[control_pb2.WatchSessionResponse]:
        """The responses; ends in ``grpc.RpcError`` unless the server ends it well."""

    def cancel(self) -> bool:
        """End the call; the iteration raises."""


class SessionWatch:
    """Follows a watch call until it ends; exactly one terminal news is always delivered."""

    def __init__(
        self,
        call: WatchCall,
        on_news: OnNews,
        error_of: Callable[[grpc.RpcError], KvlaneError],
    ) -> None:
        self._call = call
        self._on_news = on_news
        self._error_of = error_of
        self._closing = False
        # A daemon: a host program that forgets to close must still be able to exit.
        self._thread = threading.Thread(target=self._run, name="kvlane-watch", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """False once the last news is delivered."""
        return self._thread.is_alive()

    def close(self, timeout_ms: int) -> None:
        """End the watch, and with it the session; waits until the last news is delivered.

        ``on_news`` may call this: its own thread does not wait for itself.
        """
        self._closing = True
        self._call.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_ms / 1000)

    def _run(self) -> None:
        last = (SessionState.LOST, "the watch failed in its callback")
        try:
            last = self._follow()
        finally:
            self._call.cancel()
            self._on_news(*last)

    def _follow(self) -> tuple[SessionState, str]:
        try:
            for message in self._call:
                # A state that a newer agent has added is no news to this version.
                state = _STATES.get(message.state)
                if state is SessionState.CLOSED:
                    return state, message.reason
                if state is not None:
                    self._on_news(state, message.reason)
        except grpc.RpcError as failure:
            if self._closing:
                return SessionState.CLOSED, "closed by this client"
            error = self._error_of(failure)
            gone = isinstance(error, SessionNotFoundError)
            return SessionState.CLOSED if gone else SessionState.LOST, str(error)
        return SessionState.LOST, "the agent ended the watch without closing the session"
