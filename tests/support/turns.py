"""The work of a segment log without its threads: one job after the other, in an order of choice.

What threads would do waits in queues until a test has it done, and whoever waits for the log does
it meanwhile. So a test decides what has happened when, all of it happens again in the same way,
and who waits for nothing is noticed at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from dpu_agent.segments.direct_file import SegmentFile
from dpu_agent.segments.io_queue import Job, Workers
from tests.support.faulty_volume import Faults, FaultyVolume


def _nothing() -> bool:
    return False


def _oldest() -> int:
    return 0


class Turns:
    """Jobs of one log, and what else happens while somebody waits for it."""

    def __init__(self) -> None:
        self._queues: list[_Queue] = []
        self.choose: Callable[[], int] = _oldest
        """Which job is next while somebody waits."""
        self.aside: Callable[[], bool] = _nothing
        """What other threads do while one waits, or is in the middle of something that takes
        long; whether there was anything."""
        self._is_aside = False

    def workers(self) -> Workers:
        """For ``SegmentLog.open``."""
        return Workers(self._new_queue, lambda: _Lock(self))

    def _new_queue(self, name: str, depth: int) -> _Queue:
        self._queues.append(_Queue(depth))
        return self._queues[-1]

    def perform(self, choice: int = 0) -> bool:
        """Do one of the jobs that could end next; False when there is none.

        Of each queue, as many run at a time as it has threads, and any of those may end first.
        """
        could_end = [
            (queue, place)
            for queue in self._queues
            for place in range(min(len(queue.jobs), queue.depth))
        ]
        if not could_end:
            return False
        queue, place = could_end[choice % len(could_end)]
        queue.jobs.pop(place)()
        return True

    def wait(self) -> None:
        """Somebody waits for the log."""
        went_on = self.let_others()
        if not self.perform(self.choose()) and not went_on:
            raise AssertionError("somebody waits for the log, and nothing is left that it will do")

    def let_others(self) -> bool:
        """Something takes long enough for others to act, who are not interrupted themselves."""
        if self._is_aside:
            return False
        self._is_aside = True
        try:
            return self.aside()
        finally:
            self._is_aside = False


class _Queue:
    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def close(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


class _Lock(threading.Condition):
    """Has only one owner ever; to wait is to do what others would."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(threading.RLock())
        self._turns = turns

    def wait(self, timeout: float | None = None) -> bool:
        self._turns.wait()
        return True


class SlowVolume(FaultyVolume):
    """Others act before each read, write and sync of its files."""

    def __init__(self, path: Path, direct: str, faults: Faults, turns: Turns) -> None:
        super().__init__(path, direct, faults)
        self._turns = turns

    def open_segment(self, number: int) -> SegmentFile:
        return _SlowFile(super().open_segment(number), self._turns)

    def create_segment(self, number: int, nbytes: int) -> SegmentFile:
        return _SlowFile(super().create_segment(number, nbytes), self._turns)


class _SlowFile:
    def __init__(self, inner: SegmentFile, turns: Turns) -> None:
        self._inner, self._turns = inner, turns

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._turns.let_others()
        self._inner.read(buffers, offset)

    def write(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._turns.let_others()
        self._inner.write(buffers, offset)

    def sync(self) -> None:
        self._turns.let_others()
        self._inner.sync()

    def nbytes(self) -> int:
        return self._inner.nbytes()

    def close(self) -> None:
        self._inner.close()
