"""Held: a setting that cannot work is refused by name when the configuration is made."""

from __future__ import annotations

import dataclasses

import pytest

from host_driver.config import DriverConfig
from kvlane.errors import ConfigError


def test_defaults_are_those_of_the_emulated_nic() -> None:
    config = DriverConfig()
    assert (config.verbs, config.device_options) == ("emulator", {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue_depth", 0),
        ("queue_depth", 257),
        ("staging_bytes", 4095),
        ("operation_timeout_ms", 0),
        ("control_timeout_ms", -1),
        ("spin_us", -1),
        ("spin_us", 1_000_001),
        ("emulated_start_timeout_ms", 0),
    ],
)
def test_an_impossible_value_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be .*not {value}"):
        DriverConfig(**{name: value})  # type: ignore[arg-type]


def test_a_configuration_cannot_change_under_a_connection() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        DriverConfig().queue_depth = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        DriverConfig().device_options["listen"] = "0.0.0.0:0"  # type: ignore[index]
