"""Counters of a port from the kernel's files, by the names that docs/counters.md has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emulator.pyverbs.config import FabricConfig
from emulator.pyverbs.loader import installed
from kvlane.hardware import sysfs
from kvlane.hardware.backend import open_device
from kvlane.hardware.sysfs import read_counters
from tests.support.repository import ROOT

MLX5 = {
    "hw_counters/out_of_sequence": "7",
    "hw_counters/local_ack_timeout_err": "2\n",
    "hw_counters/lifespan": "10",
    "counters/port_rcv_packets": "100",
    "counters/port_xmit_data": "25",
    "counters/symbol_error": "1",
}
RXE = {
    "hw_counters/out_of_seq_request": "7",
    "hw_counters/completer_retry_err": "2",
    "hw_counters/rcvd_pkts": "100",
    "hw_counters/ack_deferred": "5",
    "hw_counters/link_downed": "N/A",
}


def port_of(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_mlx5_keeps_its_names_and_words_become_bytes(tmp_path: Path) -> None:
    assert read_counters(port_of(tmp_path, MLX5)) == {
        "out_of_sequence": 7,
        "local_ack_timeout_err": 2,
        "rx_frames": 100,
        "tx_bytes": 100,
    }


def test_soft_roce_gets_the_names_of_mlx5(tmp_path: Path) -> None:
    assert read_counters(port_of(tmp_path, RXE)) == {
        "out_of_sequence": 7,
        "local_ack_timeout_err": 2,
        "rx_frames": 100,
        "ack_deferred": 5,
    }


def test_the_names_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "counters.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\| `(\w+)` \|$", page, re.M)
    for name, mlx5, rxe in rows:
        told = re.match(r" `(\w+)`", mlx5)
        expected = told.group(1) if told else name
        assert sysfs._MLX5_NAMES.get(rxe, rxe) == expected
    assert len(rows) > 5


def test_a_port_without_files_has_no_counters(tmp_path: Path) -> None:
    assert read_counters(tmp_path / "nothing") == {}


def test_a_device_reads_those_of_its_own_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysfs, "ROOT", tmp_path)
    with installed(FabricConfig()):
        device = open_device({})
        assert device.counters() == {}
        folder = tmp_path / "kvlane0" / "ports" / "1"
        folder.mkdir(parents=True)
        port_of(folder, MLX5)
        assert device.counters()["out_of_sequence"] == 7
        device.close()
