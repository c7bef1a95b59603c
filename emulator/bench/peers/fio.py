"""fio: the rate that the device gives to a program that does nothing but this.

One job, libaio, O_DIRECT, the block size and depth of ours, over one file in the same directory
that is laid out before. A write ends with fdatasync after every ``depth`` blocks, as our group
commit syncs, and once at the end. Measured and no faster here: io_uring (1.0).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from emulator.bench.peers.interface import PeerFailedError
from emulator.bench.peers.processes import dying_with_us, find_program

FIO = "fio"
_TIMEOUT_S = 300.0


class Fio:
    """Runs fio once a turn."""

    def __init__(self, folder: Path, block_bytes: int, depth: int, total_bytes: int) -> None:
        self._program = find_program(FIO, "make bench-peers installs it")
        self._file = folder / "fio"
        self._block_bytes, self._depth, self._total_bytes = block_bytes, depth, total_bytes

    def write_gbps(self) -> float:
        """One turn of writes that are durable at its end."""
        return self._run("write", f"--fdatasync={self._depth}", "--end_fsync=1")

    def read_gbps(self) -> float:
        """One turn of random reads, each block once."""
        return self._run("randread")

    def _run(self, pattern: str, *more: str) -> float:
        command = [
            *(self._program, "--name=kvlane", f"--filename={self._file}", "--output-format=json"),
            *(f"--rw={pattern}", "--direct=1", "--ioengine=libaio", "--overwrite=1"),
            *(f"--bs={self._block_bytes}", f"--iodepth={self._depth}"),
            *(f"--size={self._total_bytes}", *more),
        ]
        ran = subprocess.run(
            dying_with_us(command), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if ran.returncode:
            raise PeerFailedError(FIO, " ".join(ran.stderr.split())[-300:])
        (job,) = json.loads(ran.stdout)["jobs"]
        side = job["write" if pattern == "write" else "read"]
        # Of the whole job, with the syncs that the rate of the side leaves out.
        return float(side["io_bytes"]) / (float(job["job_runtime"]) / 1e3) / 1e9
