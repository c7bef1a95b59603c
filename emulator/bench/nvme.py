"""``nvme``: the segment log's appends and reads of 1 MiB blocks, against fio on the same disk.

Appends are durable: the turn ends when fdatasync has covered the last block. Reads verify each
checksum. Both go to a folder beside the kernels' cache, or where TMPDIR points.
"""

from __future__ import annotations

import select
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.direct_file import aligned_buffer
from dpu_agent.segments.requests import Completion, ItemStatus, Read, Record
from dpu_agent.segments.segment_log import SegmentLog
from emulator.bench.clock import rate_gbps
from emulator.bench.peers.fio import FIO, Fio
from emulator.bench.peers.interface import PeerUnavailableError
from emulator.bench.report import Goal, MissingPeer, Report, summarise, unrivalled
from emulator.bench.rounds import Measure, Progress, alternate
from emulator.bench.workload import MIB, random_bytes
from kvlane.errors import KvlaneError
from kvlane.limits import KEY_BYTES
from kvlane.rawmem import crc32

NAME = "nvme"
GOAL = Goal(0.85)
DEPTH = 16
TURN_BLOCKS = 1024
_OURS_APPEND, _OURS_READ = "append", "read"
_FIO_WRITE, _FIO_READ = "fio write", "fio read"


class LogTurns:
    """A log, and memory for ``DEPTH`` blocks that it appends and reads."""

    def __init__(self, folder: Path, blocks: int, undo: ExitStack) -> None:
        segment_bytes = 256 * MIB if blocks >= 256 else 32 * MIB
        needed = 2 * blocks * MIB // segment_bytes + 8
        config = SegmentLogConfig((folder,), needed * segment_bytes, segment_bytes, MIB)
        self._log = SegmentLog.open(config)
        undo.callback(self._log.close)
        self._blocks = blocks
        memory = np.frombuffer(aligned_buffer(DEPTH * MIB), np.uint8)
        memory[:] = random_bytes(len(memory))
        self._memory = memory
        base = int(memory.ctypes.data)
        self._rows = [base + row * MIB for row in range(DEPTH)]
        self._checksums = [crc32(0, row, MIB) for row in self._rows]
        self._next_key = 0
        self.locations: list[int] = []

    def append_gbps(self) -> float:
        """New blocks, durable; room is made before, and not counted."""
        self._make_room()
        keys = range(self._next_key, self._next_key + self._blocks)
        self._next_key += self._blocks

        def start(number: int, row: int) -> int:
            key = keys[number].to_bytes(KEY_BYTES, "little")
            record = Record(key, self._rows[row], MIB, self._checksums[row])
            return self._log.append([record], durable=True)

        return rate_gbps(lambda: self._turn(start, self.locations.append))

    def read_gbps(self) -> float:
        """Every block once, in random order."""
        if not self.locations:
            self.append_gbps()
        order = np.random.default_rng(len(self.locations)).permutation(self._blocks)

        def start(number: int, row: int) -> int:
            location = self.locations[order[number]]
            return self._log.read([Read(location, self._rows[row], MIB)])

        try:
            return rate_gbps(lambda: self._turn(start, lambda _: None))
        finally:
            # Rows hold what was read: the sums of what is appended next are those of now.
            self._checksums = [crc32(0, row, MIB) for row in self._rows]

    def _turn(self, start: Callable[[int, int], int], keep: Callable[[int], None]) -> int:
        """All blocks, ``DEPTH`` under way; bytes."""
        rows: dict[int, int] = {}
        free = list(range(DEPTH))
        started = ended = 0
        while ended < self._blocks:
            while free and started < self._blocks:
                row = free.pop()
                rows[start(started, row)] = row
                started += 1
            for completion in self._completions():
                free.append(rows.pop(completion.ticket))
                keep(completion.locations[0])
                ended += 1
        return self._blocks * MIB

    def _completions(self) -> Sequence[Completion]:
        select.select([self._log], [], [])
        done = self._log.poll()
        for completion in done:
            if completion.statuses != (ItemStatus.OK,):
                raise KvlaneError(f"a block ended with {completion.statuses[0].name}")
        return done

    def _make_room(self) -> None:
        if self.locations:
            self._log.wait(self._log.delete(self.locations, durable=True))
            self.locations.clear()
            self._log.compact_once(1 << 40)


def run(rounds: int, progress: Progress, blocks: int = TURN_BLOCKS) -> Report:
    """Measure."""
    report = Report()
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="kvlane-bench-nvme-")))
        ours = LogTurns(folder, blocks, undo)
        fio_sides: dict[str, Measure] = {}
        try:
            fio = Fio(folder, MIB, DEPTH, blocks * MIB)
            fio_sides = {_FIO_WRITE: fio.write_gbps, _FIO_READ: fio.read_gbps}
        except PeerUnavailableError as error:
            report.miss([MissingPeer(FIO, str(error))])
        sides: dict[str, Measure] = {_OURS_APPEND: ours.append_gbps, _OURS_READ: ours.read_gbps}
        values = alternate(rounds, {**sides, **fio_sides}, progress, report)
    for side, reference in ((_OURS_APPEND, _FIO_WRITE), (_OURS_READ, _FIO_READ)):
        name, theirs = f"{NAME}-{side}", values.get(reference)
        report.results.append(
            unrivalled(name, "GB/s", values[side], reference, GOAL)
            if theirs is None
            else summarise(name, "GB/s", values[side], reference, theirs, GOAL)
        )
    return report
