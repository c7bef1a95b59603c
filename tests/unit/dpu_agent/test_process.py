"""The agent's process: exit codes, and a dead data worker that takes the process down."""

from __future__ import annotations

import logging
import os
import signal
import socket
from dataclasses import replace

import pytest

from dpu_agent.config import AgentConfig, ControlConfig, MetricsConfig, StoreConfig
from dpu_agent.runtime import process
from dpu_agent.runtime.process import Ready, compile_ahead, run_agent
from kvlane.errors import ConfigError
from tests.support.loopback_verbs import LoopbackDevice, LoopbackFabric
from tests.support.metrics_page import MetricsPage, scrape

CONFIG = AgentConfig(
    control=ControlConfig(listen="127.0.0.1:0"),
    store=StoreConfig(capacity_bytes=1 << 16, block_bytes=1 << 12),
)


@pytest.fixture(autouse=True)
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Warm-ups that were noted as complete, instead of a note that outlives the test."""
    noted: list[str] = []
    monkeypatch.setattr(process, "mark_warm", noted.append)
    return noted


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LoopbackDevice:
    (only,) = LoopbackFabric(devices=1).devices
    monkeypatch.setattr(process, "open_device", lambda verbs, options: only)
    monkeypatch.setattr(process, "open_ports", lambda verbs, options, count: [only])
    return only


def test_a_signal_is_a_good_end_and_the_device_is_left_as_it_was(device: LoopbackDevice) -> None:
    ready: list[Ready] = []

    def announce(news: Ready) -> None:
        ready.append(news)
        os.kill(os.getpid(), signal.SIGTERM)

    assert run_agent(CONFIG, announce=announce) == 0
    (only,) = ready
    assert not only.control.endswith(":0")
    assert (len(only.boot_id), only.device) == (16, device.name)
    assert (device.fabric.qps, device.regions) == ({}, {})


@pytest.mark.parametrize("completed", [True, False])
def test_kernels_are_noted_as_compiled_after_a_complete_warm_up_only(
    completed: bool, device: LoopbackDevice, marks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "warm_up", lambda *_, **__: completed)
    assert run_agent(CONFIG, announce=lambda _: os.kill(os.getpid(), signal.SIGTERM)) == 0
    assert marks == (["agent-emulator"] if completed else [])


@pytest.mark.parametrize("completed", [True, False])
def test_compiling_ahead_serves_nobody_and_leaves_the_device_as_it_was(
    completed: bool, device: LoopbackDevice, marks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not completed:
        monkeypatch.setattr(process, "warm_up", lambda *_, **__: False)
    assert compile_ahead(CONFIG) is completed
    assert marks == (["agent-emulator", "agent-emulator-tiers"] if completed else [])
    assert (device.fabric.qps, device.regions) == ({}, {})


@pytest.mark.parametrize(("processors", "workers"), [(1, 1), (3, 1), (8, 4), (500, 64)])
def test_workers_follow_the_processors_that_may_be_used(
    processors: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def open_fresh(verbs: str, options: object, count: int) -> list[LoopbackDevice]:
        asked.append(count)
        return LoopbackFabric(devices=1).devices

    monkeypatch.setattr(process, "open_ports", open_fresh)
    monkeypatch.setattr(process, "usable_processors", lambda: processors)
    assert run_agent(CONFIG, announce=lambda _: os.kill(os.getpid(), signal.SIGTERM)) == 0
    assert asked == [workers]


def test_every_start_has_another_boot_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_fresh(verbs: str, options: object, count: int) -> list[LoopbackDevice]:
        return LoopbackFabric(devices=1).devices

    monkeypatch.setattr(process, "open_ports", open_fresh)
    boot_ids: set[bytes] = set()

    def announce(news: Ready) -> None:
        boot_ids.add(news.boot_id)
        os.kill(os.getpid(), signal.SIGTERM)

    assert [run_agent(CONFIG, announce=announce) for _ in range(2)] == [0, 0]
    assert len(boot_ids) == 2


def test_a_dead_worker_takes_the_process_down(
    device: LoopbackDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bool:
        raise RuntimeError("bug")

    code = run_agent(CONFIG, announce=lambda _: monkeypatch.setattr(device, "progress", fail))
    assert code == 1
    assert any(record.levelno == logging.CRITICAL for record in caplog.records)


def test_metrics_are_off_by_default(device: LoopbackDevice) -> None:
    ready: list[Ready] = []

    def announce(news: Ready) -> None:
        ready.append(news)
        os.kill(os.getpid(), signal.SIGTERM)

    assert run_agent(CONFIG, announce=announce) == 0
    assert ready[0].metrics == ""


def test_metrics_are_served_as_long_as_the_agent_runs(device: LoopbackDevice) -> None:
    addresses: list[str] = []
    pages: list[MetricsPage] = []

    def announce(news: Ready) -> None:
        addresses.append(news.metrics)
        pages.append(scrape(news.metrics))
        os.kill(os.getpid(), signal.SIGTERM)

    config = replace(CONFIG, metrics=MetricsConfig(listen="127.0.0.1:0"))
    assert run_agent(config, announce=announce) == 0
    assert pages[0].value("kvlane_sessions") == 0
    assert pages[0].label_values("kvlane_build_info", "device") == {device.name}
    with pytest.raises(OSError, match="refused"):
        scrape(addresses[0])


@pytest.mark.parametrize("section", ["control", "metrics"])
def test_a_port_that_is_taken_is_said_before_anything_is_compiled(
    section: str, device: LoopbackDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> bool:
        raise AssertionError("kernels were compiled")

    monkeypatch.setattr(process, "warm_up", never)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        sections = {"control": ControlConfig, "metrics": MetricsConfig}
        config = replace(CONFIG, **{section: sections[section](listen=listen)})
        with pytest.raises(ConfigError, match=listen):
            run_agent(config, announce=lambda _: None)


def test_control_plane_and_metrics_cannot_share_a_port(device: LoopbackDevice) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    config = replace(CONFIG, control=ControlConfig(listen), metrics=MetricsConfig(listen))
    with pytest.raises(ConfigError, match=listen):
        run_agent(config, announce=lambda _: None)
    assert (device.fabric.qps, device.regions) == ({}, {})
