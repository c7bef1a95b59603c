"""Mooncake Store over TCP: a master, a client that holds the memory and one that uses it.

What is measured: one call for a batch, put or get, from and to memory that the using client has
registered, until every key has its result. Puts are of keys that the store does not have: what
was put before is removed, untimed. Measured and no faster: its pool of connections
(MC_TCP_ENABLE_CONNECTION_POOL), other sizes of slices, MC_STORE_MEMCPY, which is for memory of
the same process.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from emulator.bench.peers.child import PEERS_FOLDER, Child
from emulator.bench.peers.interface import Keys, PeerUnavailableError
from emulator.bench.peers.processes import Server, free_port

MOONCAKE = "mooncake store over TCP"
_MODULE = "emulator.bench.peers.children.mooncake_child"
_ENVIRONMENT = {"GLOG_minloglevel": "2", "MC_LOG_LEVEL": "ERROR"}
_SEGMENT_BYTES = 2 << 30
_BUFFER_BYTES = 64 << 20
_LEASE_MS = 5000
_CLIENT_TTL_S = 3600
"""Longer than any pause, or the master would forget the memory of a paused client."""
_BATCH_KEYS = 1000


class MooncakeStore:
    """The three processes; keys are given as text, blocks lie in lanes of the using client."""

    name = MOONCAKE

    def __init__(self, block_bytes: int, depth: int) -> None:
        master = PEERS_FOLDER / "bin" / "mooncake_master"
        if not master.exists():
            raise PeerUnavailableError(f"no {master}; run make bench-peers")
        port, metrics_port = free_port(), free_port()
        command = [
            *(str(master), f"--rpc_port={port}", f"--metrics_port={metrics_port}"),
            *("--enable_metric_reporting=false", f"--default_kv_lease_ttl={_LEASE_MS}"),
            f"--client_ttl={_CLIENT_TTL_S}",
        ]
        address = ("127.0.0.1", port)
        with ExitStack() as undo:
            self._server = server = Server("mooncake", lambda _: command)
            undo.callback(server.close)
            server.connect(address).close()
            self._holder = self._child(undo, port, _SEGMENT_BYTES)
            self._user = self._child(undo, port, 0)
            self._user.call("allocate", blocks=depth, block_bytes=block_bytes)
            self._undo = undo.pop_all()
        self._keys: list[str] = []

    @staticmethod
    def _child(undo: ExitStack, port: int, segment_bytes: int) -> Child:
        child = Child(_MODULE, _ENVIRONMENT)
        undo.callback(child.close)
        child.call(
            "connect",
            master=f"127.0.0.1:{port}",
            segment_bytes=segment_bytes,
            buffer_bytes=_BUFFER_BYTES,
        )
        return child

    def put(self, keys: Keys, rows: NDArray[np.uint8]) -> float:  # noqa: ARG002 (its own lanes)
        """batch_put_from registered memory of the client."""
        names = [key.hex() for key in keys]
        self._keys += names
        seconds: float = self._user.call("put", keys=names)
        return seconds

    def get(self, keys: Keys, rows: NDArray[np.uint8]) -> float:  # noqa: ARG002 (its own lanes)
        """batch_get_into registered memory of the client."""
        seconds: float = self._user.call("get", keys=[key.hex() for key in keys])
        return seconds

    def exist(self, keys: Keys) -> tuple[int, float]:
        """batch_is_exist."""
        there, seconds = self._user.call("exist", keys=[key.hex() for key in keys])
        return there, seconds

    def clear(self) -> None:
        """Remove what was put."""
        for first in range(0, len(self._keys), _BATCH_KEYS):
            self._user.call("clear", keys=self._keys[first : first + _BATCH_KEYS])
        self._keys.clear()

    def pause(self) -> None:
        """Stop the three processes."""
        self._user.pause()
        self._holder.pause()
        self._server.pause()

    def resume(self) -> None:
        """Let them run."""
        self._user.resume()
        self._holder.resume()
        self._server.resume()

    def close(self) -> None:
        """End all three."""
        self._undo.close()
