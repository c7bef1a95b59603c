"""The orchestrator's handle of an endpoint: methods of ``endpoint.Endpoint``, called over TCP."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

CALL_TIMEOUT_S = 60.0


class RemoteError(Exception):
    """The endpoint could not do it; the text is its traceback, or how it went away."""


class Remote:
    """An endpoint that has connected."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        self.name = name
        connection.settimeout(CALL_TIMEOUT_S)
        self._connection = connection
        self._stream = connection.makefile("rw", encoding="utf-8", newline="\n")

    def call(self, method: str, **arguments: Any) -> Any:
        """Do it there and wait for the answer."""
        try:
            self._stream.write(json.dumps({"do": method, "with": arguments}) + "\n")
            self._stream.flush()
            line = self._stream.readline()
        except OSError as error:
            raise RemoteError(f"{self.name}: {method}: {error}") from None
        if not line:
            raise RemoteError(f"{self.name}: the connection ended at {method}")
        answer = json.loads(line)
        if "error" in answer:
            raise RemoteError(f"{self.name}: {method}: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        """End the connection, and with it the endpoint's program."""
        with suppress(OSError):  # of what could not be sent any more
            self._stream.close()
        self._connection.close()


def accept(
    listener: socket.socket, name: str, within_s: float, still_alive: Callable[[], None]
) -> Remote:
    """The next endpoint that connects; ``still_alive`` raises when none will."""
    listener.settimeout(0.5)
    for _ in range(int(within_s * 2)):
        still_alive()
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Remote(name, connection)
    raise RemoteError(f"{name}: no connection within {within_s:.0f} s")
