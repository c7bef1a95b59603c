"""Which of this host's addresses an agent reaches: the one that the route to it starts from."""

from __future__ import annotations

import socket
from dataclasses import replace

from host_driver.config import DriverConfig
from kvlane.config import parse_endpoint
from kvlane.errors import AgentUnreachableError, ConfigError

_LOOPBACK_IPV6 = "::1"
_LOOPBACK = "127.0.0.1"


def toward(control: str, config: DriverConfig) -> DriverConfig:
    """``config`` with a software NIC that the agent at ``control`` reaches.

    Where the configuration says where to listen, or names hardware, it is returned as it is.
    """
    if config.verbs != "emulator" or "listen" in config.device_options:
        return config
    listen = f"{local_address(control)}:0"
    return replace(config, device_options={**config.device_options, "listen": listen})


def local_address(control: str) -> str:
    """The IPv4 address of this host from which packets to ``host:port`` leave; sends none.

    ``AgentUnreachableError`` when there is no way, ``ConfigError`` when there is only IPv6.
    """
    host, port = parse_endpoint(control)
    if host == _LOOPBACK_IPV6:
        return _LOOPBACK
    try:
        addresses = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise ConfigError(
            f"{host} has no IPv4 address ({error.strerror}), and the software NIC knows no other; "
            f"name an address of this host that the agent's NIC reaches (--data-listen, or listen "
            f"in device_options)"
        ) from error
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(addresses[0][4])
        except OSError as error:
            raise AgentUnreachableError(f"no route to {control}: {error.strerror}") from error
        address: str = probe.getsockname()[0]
        return address
