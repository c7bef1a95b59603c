"""The benchmark of metadata fills what it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpu_agent.cache.invariants import check_invariants
from emulator.bench import index
from tests.support.repository import run_python

BLOCKS = 2_000
MANY = 400_000


def test_every_slot_of_the_store_holds_a_block() -> None:
    store = index.filled_store(2_000)
    assert store.stats().blocks == store.stats().stored == store.capacity_blocks == 2_000
    check_invariants(store)


def test_it_reports_what_the_process_grew_by(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    sizes = iter([5_000, 5_000 + 61 * BLOCKS])
    filled = index.filled_store

    def fill(blocks: int) -> object:
        seen.append(blocks)
        return filled(blocks)

    monkeypatch.setattr(index, "filled_store", fill)
    monkeypatch.setattr(index, "resident_bytes", lambda: next(sizes))
    (result,) = index.run(1, lambda _: None, "pcie", BLOCKS).results
    assert seen[-1] == BLOCKS
    assert (result.value, result.unit, result.met) == (61.0, "bytes", True)


def test_a_full_store_is_resident(tmp_path: Path) -> None:
    """In a process that has no freed memory to use again; compiled, for there are many blocks."""
    code = f"from emulator.bench import index; print(index.bytes_per_block({MANY}))"
    ran = run_python(["-c", code], cwd=tmp_path, env={"NUMBA_DISABLE_JIT": "0"})
    assert ran.returncode == 0, ran.stderr
    assert 45 < float(ran.stdout) < 90
