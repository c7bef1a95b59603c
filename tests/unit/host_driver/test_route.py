"""Held: the emulated NIC listens where the agent can reach it, unless somebody says otherwise."""

from __future__ import annotations

import socket

import pytest

from host_driver.config import DriverConfig
from host_driver.route import local_address, toward
from kvlane.errors import ConfigError

AGENT_ELSEWHERE = "192.0.2.1:50057"


def source_address(destination: str) -> str:
    """What the kernel puts into packets to that address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 9))
        except OSError:
            pytest.skip(f"no route to {destination}")
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("control", ["127.0.0.1:50057", "localhost:50057", "[::1]:50057"])
def test_an_agent_on_this_machine_is_reached_from_loopback(control: str) -> None:
    assert local_address(control) == "127.0.0.1"


def test_an_agent_elsewhere_is_reached_from_the_address_of_the_route() -> None:
    expected = source_address("192.0.2.1")
    assert local_address(AGENT_ELSEWHERE) == expected
    config = toward(AGENT_ELSEWHERE, DriverConfig(device_options={"mtu_bytes": 1024}))
    assert config.device_options == {"mtu_bytes": 1024, "listen": f"{expected}:0"}


@pytest.mark.parametrize(
    "config",
    [
        DriverConfig(device_options={"listen": "127.0.0.1:7000"}),
        DriverConfig(verbs="hardware", device_options={"device": "mlx5_0"}),
    ],
    ids=["written", "not emulated"],
)
def test_what_is_configured_stays(config: DriverConfig) -> None:
    assert toward(AGENT_ELSEWHERE, config) is config


@pytest.mark.parametrize("host", ["[2001:db8::1]", "no-such-host.invalid"])
def test_a_host_without_ipv4_is_refused_with_what_to_do(host: str) -> None:
    with pytest.raises(ConfigError, match=r"no IPv4 address.*--data-listen"):
        local_address(f"{host}:50057")
