"""The benchmark of the segment log, at a small size."""

from __future__ import annotations

import pytest

from emulator.bench import nvme
from emulator.bench.peers import fio
from emulator.bench.peers.interface import PeerUnavailableError


def test_without_fio_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, needs: str) -> str:
        raise PeerUnavailableError(f"no {name}; {needs}")

    monkeypatch.setattr(fio, "find_program", absent)
    report = nvme.run(1, lambda _: None, blocks=20)
    assert [result.name for result in report.results] == ["nvme-append", "nvme-read"]
    assert all(result.value > 0 and result.ratio is None for result in report.results)
    assert list(report.missing) == ["fio"]
    assert "make bench-peers" in report.missing["fio"].needs
