"""An agent with files below its memory under SIGKILL: ``python -m tests.crash.agent --help``.

Each round stores, retrieves and deletes from several threads until the agent is killed at a random
moment, and starts it again over the same files, with compression or without. What was acknowledged
as persistent is there with the right bytes, what was acknowledged as deleted is not, and no wrong
byte ever comes back.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import threading
import time
from functools import cache
from pathlib import Path

import numpy as np

import host_driver
from host_driver import DriverConfig, KeyStatus, Namespace, SyncDpu
from kvlane.errors import KvlaneError
from tests.support import cold_payloads
from tests.support.agent_process import AgentProcess

BLOCK_BYTES = 32 << 10
HOT_BLOCKS = 64
NUMBERS = 240
"""Blocks that may exist: several times what memory holds, and less than the files do."""
BATCH = 8
THREADS = 3
LONGEST_S = 0.6


def keys_of(numbers: list[int]) -> np.ndarray:
    """A key for each number."""
    keys = np.zeros((len(numbers), 32), np.uint8)
    keys[:, 0], keys[:, 1:] = numbers, 7
    return keys


def contents_of(numbers: list[int]) -> np.ndarray:
    """What is stored under the key of each number, whoever stores it."""
    return np.stack([_content_of(number) for number in numbers])


@cache
def _content_of(number: int) -> np.ndarray:
    kind = cold_payloads.numbers if number % 2 else cold_payloads.noise
    return kind(number, BLOCK_BYTES)


class Expected:
    """What must be there, and what must not; a number that is in use by a thread is neither."""

    def __init__(self) -> None:
        self.present: set[int] = set()
        self.absent: set[int] = set()
        self.acknowledged = 0
        self._lock = threading.Lock()

    def forget(self, numbers: list[int]) -> None:
        """Something is about to be done to them, and may be or not when it is cut short."""
        with self._lock:
            self.present.difference_update(numbers)
            self.absent.difference_update(numbers)

    def note(self, present: list[int], absent: list[int]) -> None:
        """The agent has acknowledged this."""
        with self._lock:
            self.present.update(present)
            self.absent.update(absent)
            self.acknowledged += len(present) + len(absent)


def agent_over(folder: Path, compression: str) -> AgentProcess:
    """An agent whose files are too small for everything that is ever stored, so that they are
    compacted."""
    return AgentProcess(
        f"--capacity={HOT_BLOCKS * BLOCK_BYTES}",
        f"--block-bytes={BLOCK_BYTES}",
        f"--nvme={folder}",
        "--nvme-capacity=24MiB",
        "--nvme-segment=1MiB",
        f"--set=nvme.compression={compression}",
    )


def connected(agent: AgentProcess) -> SyncDpu:
    """A host of its own."""
    return host_driver.connect_sync(
        agent.control, namespace=Namespace(name="crash"), config=DriverConfig(verify_checksums=True)
    )


def retrieve_right(dpu: SyncDpu, numbers: list[int]) -> list[int]:
    """Those of some numbers that are there, every byte of which is right."""
    into = np.zeros((len(numbers), BLOCK_BYTES), np.uint8)
    ok = dpu.retrieve(keys_of(numbers), into).ok
    assert np.array_equal(into[ok], contents_of(numbers)[ok]), "wrong bytes came back"
    return [number for number, came in zip(numbers, ok.tolist(), strict=True) if came]


def use(
    dpu: SyncDpu, numbers: list[int], expected: Expected, seed: int, wrong: list[AssertionError]
) -> None:
    """Store, retrieve and delete until the agent is gone. Only this thread uses these numbers."""
    rng = random.Random(seed)
    try:
        with dpu:
            while True:
                some = rng.sample(numbers, BATCH)
                expected.forget(some)
                if rng.random() < 0.25:
                    dpu.delete(keys_of(some))
                    expected.note([], some)
                    continue
                statuses = dpu.store(keys_of(some), contents_of(some), persistent=True).statuses
                kept = np.isin(statuses, [KeyStatus.OK, KeyStatus.EXISTS]).tolist()
                expected.note([n for n, k in zip(some, kept, strict=True) if k], [])
                retrieve_right(dpu, rng.sample(numbers, BATCH))
    except AssertionError as error:
        wrong.append(error)
    except KvlaneError:
        return  # the agent was killed


def check(dpu: SyncDpu, expected: Expected) -> None:
    """After a restart: nothing lost, nothing back."""
    for first in range(0, NUMBERS, BATCH):
        numbers = list(range(first, first + BATCH))
        found = set(retrieve_right(dpu, numbers))
        lost = expected.present & set(numbers) - found
        back = expected.absent & found
        assert not lost, f"acknowledged and lost: {sorted(lost)}"
        assert not back, f"deleted and back: {sorted(back)}"


def crash_round(folder: Path, seed: int, expected: Expected) -> None:
    """One agent: what it finds is checked, then it is used until it is killed."""
    rng = random.Random(seed)
    numbers = list(range(NUMBERS))
    rng.shuffle(numbers)
    with agent_over(folder, rng.choice(("none", "zstd"))) as agent:
        with connected(agent) as dpu:
            check(dpu, expected)
        wrong: list[AssertionError] = []
        threads = []
        for i in range(THREADS):
            work = connected(agent), numbers[i::THREADS], expected, seed + i, wrong
            threads.append(threading.Thread(target=use, args=work))
        for thread in threads:
            thread.start()
        time.sleep(rng.uniform(0.02, LONGEST_S))
        agent.process.kill()
        for thread in threads:
            thread.join()
        if wrong:
            raise wrong[0]


def run_rounds(folder: Path, rounds: int, seed: int) -> Expected:
    """So many kills, and a last look."""
    expected = Expected()
    for number in range(rounds):
        crash_round(folder, seed + 100 * number, expected)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{number + 1} of {rounds} kills ")
    with agent_over(folder, "none") as agent, connected(agent) as dpu:
        check(dpu, expected)
    return expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="kvlane-crash-") as folder:
        expected = run_rounds(Path(folder), arguments.rounds, arguments.seed)
    print(
        f"{arguments.rounds} kills of the agent, {expected.acknowledged} blocks acknowledged: "
        f"none lost, none back, no wrong byte"
    )


if __name__ == "__main__":
    main()
