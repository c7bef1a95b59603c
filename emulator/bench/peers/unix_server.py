"""A server on a Unix socket and its one client, a raw socket: what text protocols share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from emulator.bench.peers.processes import Server, find_program
from emulator.bench.peers.streams import ReplyReader, deepen

CR_LF = memoryview(b"\r\n")
"""What ends a request and a payload."""


class UnixServer:
    """Starts the server and connects; a protocol is a subclass that asks and reads replies."""

    def __init__(
        self, name: str, program: str, arguments: Callable[[Path, Path], Sequence[str]]
    ) -> None:
        """``arguments(folder, socket)`` are those of a server that listens at the path ``socket``.

        ``PeerUnavailableError`` when there is no such program, or it does not listen.
        """
        self.name = name
        path = find_program(program, f"install {program} (make bench-peers)")
        self._server = Server(name, lambda folder: [path, *arguments(folder, folder / "socket")])
        try:
            self._socket = self._server.connect(str(self._server.folder / "socket"))
        except BaseException:
            self._server.close()
            raise
        deepen(self._socket)
        self._reader = ReplyReader(self._socket)

    def pause(self) -> None:
        """Stop the server."""
        self._server.pause()

    def resume(self) -> None:
        """Let it run."""
        self._server.resume()

    def close(self) -> None:
        """End client and server."""
        self._socket.close()
        self._server.close()
