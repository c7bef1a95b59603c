"""An agent with several workers: hosts are spread over them and see one store."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing

import numpy as np
import pytest

import host_driver
from host_driver import DriverConfig, KeyStatus, Namespace, SyncDpu
from host_driver.emulated import EmulatedOptions
from tests.support.driver_calls import start_agent

WORKERS, HOSTS = 3, 7
KEYS, BLOCK_BYTES = 40, 16384
CAPACITY_BLOCKS = 64
ROUNDS = 15
GIVE_UP_S = 120.0


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """A key for each number."""
    keys = np.zeros((len(numbers), 32), np.uint8)
    keys[:, :8] = np.ascontiguousarray(numbers, np.int64).view(np.uint8).reshape(-1, 8)
    return keys


def content_of(numbers: np.ndarray) -> np.ndarray:
    """What every host stores under those keys, a row each."""
    words = (numbers[:, None] * 1_000_003 + np.arange(BLOCK_BYTES // 8)).astype(np.int64)
    return words.view(np.uint8)


def mix(dpu: SyncDpu, seed: int) -> None:
    """Store, retrieve, look up and delete keys that all hosts use, more than the store holds."""
    rng = np.random.default_rng(seed)
    rows = dpu.alloc(KEYS * BLOCK_BYTES).reshape(KEYS, BLOCK_BYTES)
    for _ in range(ROUNDS):
        numbers = rng.choice(3 * CAPACITY_BLOCKS, rng.integers(1, KEYS), replace=False)
        keys, mine = keys_of(numbers), rows[: len(numbers)]
        mine[:] = content_of(numbers)
        stored = dpu.store(keys, mine).statuses
        assert np.isin(stored, [KeyStatus.OK, KeyStatus.EXISTS, KeyStatus.NO_SPACE]).all()
        mine[:] = 0
        came = dpu.retrieve(keys, mine)
        assert np.array_equal(mine[came.ok], content_of(numbers[came.ok]))
        assert dpu.match(keys) <= len(keys)
        dpu.exist(keys)
        dpu.delete(keys[:2])


@pytest.mark.parametrize("link", ["udp", "pcie"])
def test_hosts_on_all_workers_share_one_store(link: str) -> None:
    options = EmulatedOptions(
        capacity=CAPACITY_BLOCKS * BLOCK_BYTES,
        block_bytes=BLOCK_BYTES,
        link=link,
        workers=WORKERS,
    )
    config = DriverConfig(device_options={"link": link})
    failures: list[BaseException] = []

    def run(dpu: SyncDpu, seed: int) -> None:
        try:
            mix(dpu, seed)
        except BaseException as error:
            failures.append(error)

    with ExitStack() as undo:
        agent = undo.enter_context(closing(start_agent(options)))
        dpus = [
            undo.enter_context(
                host_driver.connect_sync(
                    agent.control, namespace=Namespace(name="shared"), config=config
                )
            )
            for _ in range(HOSTS)
        ]
        threads = [threading.Thread(target=run, args=(d, s)) for s, d in enumerate(dpus)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GIVE_UP_S)
        assert failures == []
        stats = dpus[0].stats()
        assert stats.sessions == HOSTS
        assert stats.store.pinned == stats.store.writing == 0
        assert stats.store.blocks <= CAPACITY_BLOCKS
        assert stats.commands["RETRIEVE"] == HOSTS * ROUNDS
