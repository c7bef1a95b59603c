"""The benchmark of compression, at a small size, and the blocks that it measures."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from emulator.bench import compression
from emulator.bench.kv_blocks import kv_block


def test_it_reports_ratio_and_rates_without_a_goal() -> None:
    report = compression.run(1, lambda _: None, turn_blocks=2)
    names = [result.name.removeprefix("compression-") for result in report.results]
    assert names == ["ratio", "compress", "compress", "decompress", "decompress", "refuse"]
    assert all(result.value > 0 and result.target is None for result in report.results)
    ratio = report.results[0]
    assert ratio.value > 1.25
    assert ratio.ratio is not None
    assert ratio.ratio > 1.05, "the shuffle is worth its while"


def test_without_the_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    report = compression.run(1, lambda _: None)
    assert report.results == []
    assert "kvlane[compression]" in report.missing["zstandard"].needs


def test_kv_blocks_are_numbers_as_described() -> None:
    nbytes = 256 << 10
    block = kv_block(nbytes, seed=1)
    assert (block.dtype, len(block)) == (np.uint8, nbytes)
    assert np.array_equal(block, kv_block(nbytes, seed=1))
    assert not np.array_equal(block, kv_block(nbytes, seed=2))
    numbers = (block.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(-1, 128)
    scales = np.sort(numbers.std(axis=0))
    assert scales[-4] > 3 * scales[64], "outlier channels"
    alike = [np.corrcoef(numbers[:-1, c], numbers[1:, c])[0, 1] for c in range(128)]
    assert 0.4 < np.mean(alike) < 0.8
