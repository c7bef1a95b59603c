"""The agent's configuration: its defaults hold together, its relations are refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from dpu_agent.cache.policy.registry import POLICIES
from dpu_agent.config import AgentConfig, SessionsConfig, StoreConfig
from kvlane.config import load_file, load_mapping, parse_endpoint, render
from kvlane.errors import ConfigError
from kvlane.limits import MAX_BLOCK_BYTES, MAX_QUEUE_DEPTH, MAX_SESSIONS, MIN_BLOCK_BYTES


def test_defaults() -> None:
    config = load_mapping(AgentConfig, {})
    assert parse_endpoint(config.control.listen) == ("127.0.0.1", 50057)
    assert config.metrics.listen == ""
    assert (config.device.verbs, config.device.options) == ("emulator", {})
    assert config.store == StoreConfig(capacity_bytes=1 << 30, block_bytes=1 << 20, policy="lru")
    assert config.sessions == SessionsConfig(
        max_sessions=64, max_queue_depth=64, watch_grace_ms=10000
    )


def test_defaults_written_out_satisfy_every_check(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(render(AgentConfig()))
    assert load_file(AgentConfig, path) == AgentConfig()


def test_every_setting_is_documented() -> None:
    config = AgentConfig()
    for section in dataclasses.fields(config):
        values = getattr(config, section.name)
        lines = render(values).splitlines()
        for field in dataclasses.fields(values):
            above = next(i for i, line in enumerate(lines) if line.startswith(f"{field.name}:"))
            assert lines[above - 1].startswith("# "), field.name


@pytest.mark.parametrize(
    ("mapping", "path"),
    [
        ({"control": {"listen": "50057"}}, "control.listen"),
        ({"device": {"verbs": "mlx5"}}, "device.verbs"),
        ({"device": {"options": "udp"}}, "device.options"),
        ({"store": {"block_bytes": MIN_BLOCK_BYTES - 1}}, "store.block_bytes"),
        ({"store": {"block_bytes": MAX_BLOCK_BYTES + 1}}, "store.block_bytes"),
        ({"store": {"capacity_bytes": "1023KiB"}}, "store.capacity_bytes"),
        ({"store": {"policy": "newest"}}, "store.policy"),
        ({"nvme": {"compression": "lz4"}}, "nvme.compression"),
        ({"nvme": {"compression_level": 0}}, "nvme.compression_level"),
        ({"nvme": {"compression_level": 20}}, "nvme.compression_level"),
        ({"nvme": {"element_bytes": 0}}, "nvme.element_bytes"),
        ({"nvme": {"element_bytes": 3}}, "nvme.element_bytes"),
        ({"nvme": {"element_bytes": 8}}, "nvme.element_bytes"),
        ({"sessions": {"max_sessions": 0}}, "sessions.max_sessions"),
        ({"sessions": {"max_sessions": MAX_SESSIONS + 1}}, "sessions.max_sessions"),
        ({"sessions": {"max_queue_depth": 0}}, "sessions.max_queue_depth"),
        ({"sessions": {"max_queue_depth": MAX_QUEUE_DEPTH + 1}}, "sessions.max_queue_depth"),
        ({"sessions": {"watch_grace_ms": 0}}, "sessions.watch_grace_ms"),
        ({"sessions": {"watch_grace": 5}}, "sessions.watch_grace"),
        ({"metrics": {"listen": "9100"}}, "metrics.listen"),
    ],
)
def test_what_the_agent_cannot_keep_is_refused_by_name(
    mapping: Mapping[str, object], path: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^agent\.yaml: {path}\b"):
        load_mapping(AgentConfig, mapping)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_policy_is_chosen_by_name(policy: str) -> None:
    assert load_mapping(AgentConfig, {"store": {"policy": policy}}).store.policy == policy


def test_an_unknown_policy_lists_those_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        load_mapping(AgentConfig, {"store": {"policy": "newest"}})
    assert all(policy in str(caught.value) for policy in POLICIES)


def test_capacity_of_exactly_one_block_is_enough() -> None:
    store = {"capacity_bytes": MAX_BLOCK_BYTES, "block_bytes": MAX_BLOCK_BYTES}
    assert load_mapping(AgentConfig, {"store": store}).store.block_bytes == MAX_BLOCK_BYTES


def test_device_options_pass_through() -> None:
    options = {"link": "udp", "faults": {"drop": 0.1}}
    assert load_mapping(AgentConfig, {"device": {"options": options}}).device.options == options
