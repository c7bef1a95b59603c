"""NIXL: reads and writes of another process's memory over UCX, with no store on top.

What is measured: one prepared transfer of a batch after the other, each from its start to DONE,
by the process that asked for it. Both ends have registered their memory before, all of it at
once; transfers are made before and posted again. No block is looked up, published, checked or
evicted.

The end that transfers has no thread of progress (see ``nixl_child``): with it, rates over shared
memory were 3.3 instead of 7.2 GB/s on two cores. With ``cma`` UCX moves a batch by
``process_vm_readv`` and ``_writev``, the fastest that it has between processes that do not share
their memory. A retrieve is a READ and a store a WRITE, as whoever has no block asks for it; over
TCP READs come out two to three times slower than WRITEs. Measured and no faster: other choices of
transports that have CMA, threads of the backend, over TCP larger segments and socket buffers.
"""

from __future__ import annotations

from contextlib import ExitStack
from enum import Enum

from emulator.bench.peers.child import Child

_MODULE = "emulator.bench.peers.children.nixl_child"


class NixlPath(Enum):
    """What UCX may use, by the name of the peer."""

    SHARED_MEMORY = "nixl over shared memory"
    TCP = "nixl over TCP"


_TRANSPORTS = {NixlPath.SHARED_MEMORY: "posix,sysv,cma,self,tcp", NixlPath.TCP: "tcp,self"}
"""tcp in the first is for the handshake alone: UCX has no other way for it."""


class Nixl:
    """Two processes: blocks lie with the holder, the user has ``depth`` lanes."""

    def __init__(self, path: NixlPath, block_bytes: int, depth: int, blocks: int) -> None:
        self.name = path.value
        self._block_bytes, self._depth, self._blocks = block_bytes, depth, blocks
        environment = {"UCX_TLS": _TRANSPORTS[path], "NIXL_LOG_LEVEL": "WARN"}
        with ExitStack() as undo:
            self._holder = Child(_MODULE, environment)
            undo.callback(self._holder.close)
            self._user = Child(_MODULE, environment)
            undo.callback(self._user.close)
            self._introduce()
            self._undo = undo.pop_all()

    def _introduce(self) -> None:
        self._holder.call("open", progress_thread=True)
        self._user.call("open", progress_thread=False)
        user = self._user.call("allocate", blocks=self._depth, block_bytes=self._block_bytes)
        holder = self._holder.call("allocate", blocks=self._blocks, block_bytes=self._block_bytes)
        self._holder.call("meet", metadata=user["metadata"])
        self._user.call("meet", metadata=holder["metadata"])
        self._user.call(
            "prepare", address=holder["address"], blocks=self._blocks, nbytes=self._block_bytes
        )

    def retrieve_gbps(self, repeat: int) -> float:
        """10^9 bytes a second of all blocks by READs, ``depth`` at a time."""
        return self._gbps("READ", repeat)

    def store_gbps(self, repeat: int) -> float:
        """The same of WRITEs to the holder."""
        return self._gbps("WRITE", repeat)

    def _gbps(self, operation: str, repeat: int) -> float:
        seconds: float = self._user.call("move", operation=operation, repeat=repeat)
        return repeat * self._blocks * self._block_bytes / seconds / 1e9

    def read_latency_us(self, times: int) -> float:
        """Median of READs of ``depth`` blocks in microseconds."""
        latency: float = self._user.call("latency_us", operation="READ", times=times)
        return latency

    def pause(self) -> None:
        """Stop the two processes."""
        self._user.pause()
        self._holder.pause()

    def resume(self) -> None:
        """Let them run."""
        self._user.resume()
        self._holder.resume()

    def close(self) -> None:
        """End both processes."""
        self._undo.close()
