"""The process that is killed: appends, deletes and compacts, and says so on standard output.

A line is written before something begins (``a``, ``d``) and after it was acknowledged as durable
(``A``, ``D``): number of the block, version.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable

from dpu_agent.segments.requests import ItemStatus
from dpu_agent.segments.segment_log import SegmentLog
from tests.crash.segments import BLOCK_BYTES, NUMBERS, crash_config
from tests.support.segment_blocks import Memory

LANES = 4


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Worker:
    """Random operations, a few at a time, one a block."""

    def __init__(self, log: SegmentLog, seed: int) -> None:
        self._log, self._rng = log, random.Random(seed)
        self._index = {int.from_bytes(k.key, "little"): k.location for k in log.records()}
        # Never given twice on one log, so that a record that is back is known by its version.
        self._version = seed << 20
        self._moves: dict[int, int] = {}
        self._lock = threading.Lock()
        self._busy: set[int] = set()
        self._under_way: deque[tuple[int, Callable[[ItemStatus, int], None]]] = deque()
        self._memories = [Memory(BLOCK_BYTES) for _ in range(LANES)]

    def run(self) -> None:
        threading.Thread(target=self._compact, daemon=True).start()
        while True:
            number = self._rng.randrange(NUMBERS)
            if number not in self._busy:
                self._busy.add(number)
                with self._lock:
                    self._start(number)
            if len(self._under_way) == LANES:
                ticket, then = self._under_way.popleft()
                done = self._log.wait(ticket)
                with self._lock:
                    then(done.statuses[0], done.locations[0])

    def _start(self, number: int) -> None:
        if number in self._index and self._rng.random() < 0.45:
            say("d", number)
            location = self._followed(self._index[number])
            self._under_way.append(
                (
                    self._log.delete([location], durable=True),
                    lambda status, _: self._deleted(number, status),
                )
            )
            return
        self._version += 1
        version, memory = self._version, self._memories.pop()
        nbytes = self._rng.choice([1, 4096, 5000, BLOCK_BYTES])
        say("a", number, version)
        record = memory.record(number, version, nbytes)

        def appended(status: ItemStatus, location: int) -> None:
            self._memories.append(memory)
            self._busy.discard(number)
            if status is ItemStatus.OK:
                say("A", number, version)
                self._index[number] = location

        self._under_way.append((self._log.append([record], durable=True), appended))

    def _deleted(self, number: int, status: ItemStatus) -> None:
        self._busy.discard(number)
        if status is ItemStatus.OK:
            say("D", number)
            self._index.pop(number, None)

    def _compact(self) -> None:
        while True:
            self._log.compact_once(1 << 20)
            with self._lock:
                self._moves.update(self._log.moved())

    def _followed(self, location: int) -> int:
        """Where a record is now; its move may have been told before its append was."""
        while location in self._moves:
            location = self._moves[location]
        return location


def main() -> None:
    Worker(SegmentLog.open(crash_config(sys.argv[1])), int(sys.argv[2])).run()


if __name__ == "__main__":
    main()
