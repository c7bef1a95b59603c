"""The MTU of an interface is found by its address, and the RoCE MTU is the largest that fits."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.backend import open_device
from emulator.link.mtu import HEADER_BYTES, interface_mtu_bytes, largest_mtu
from emulator.nic.options import NicOptions
from kvlane.config import load_mapping
from kvlane.errors import ConfigError
from kvlane.verbs.enums import AccessFlags, Mtu

_LARGEST_IPV4_PACKET = 65535


@pytest.mark.parametrize(
    ("interface_bytes", "mtu"),
    [
        (65535, Mtu.MTU_4096),
        (9000, Mtu.MTU_4096),
        (4096 + HEADER_BYTES, Mtu.MTU_4096),
        (4096 + HEADER_BYTES - 1, Mtu.MTU_2048),
        (4096, Mtu.MTU_2048),
        (1500, Mtu.MTU_1024),
        (1400, Mtu.MTU_1024),
        (1280, Mtu.MTU_1024),
        (576, Mtu.MTU_512),
        (256 + HEADER_BYTES, Mtu.MTU_256),
    ],
)
def test_the_largest_that_fits_with_all_headers(interface_bytes: int, mtu: Mtu) -> None:
    assert largest_mtu(interface_bytes) == mtu


def test_an_interface_that_holds_no_packet_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 320"):
        largest_mtu(256 + HEADER_BYTES - 1)


def interfaces() -> Iterator[tuple[str, int]]:
    """Address and MTU of this machine's interfaces: loopback, and the one of the default route."""
    loopback = Path("/sys/class/net/lo/mtu")
    yield "127.0.0.1", int(loopback.read_text())
    yield "127.0.0.2", int(loopback.read_text())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for line in Path("/proc/net/route").read_text().splitlines()[1:]:
            name, destination = line.split()[:2]
            if destination == "00000000":
                probe.connect(("192.0.2.1", 9))  # sends nothing
                mtu = int(Path(f"/sys/class/net/{name}/mtu").read_text())
                yield str(probe.getsockname()[0]), mtu
                return


@pytest.mark.parametrize(("address", "mtu_bytes"), list(interfaces()))
def test_the_mtu_is_that_of_the_interface_with_the_address(address: str, mtu_bytes: int) -> None:
    assert interface_mtu_bytes(address) == min(mtu_bytes, _LARGEST_IPV4_PACKET)


def test_an_address_of_no_interface_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mtu_bytes: .*198\.51\.100\.7.* write the path MTU"):
        interface_mtu_bytes("198.51.100.7")


def test_without_options_a_nic_takes_what_its_interface_holds() -> None:
    device = open_device({})
    try:
        fitting = largest_mtu(interface_mtu_bytes("127.0.0.1")).nbytes
        assert f"MTU {fitting}" in device.name
    finally:
        device.close()


def test_an_mtu_that_is_written_counts() -> None:
    device = open_device({"mtu_bytes": 512})
    try:
        assert "MTU 512" in device.name
    finally:
        device.close()


def test_an_mtu_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no path MTU of 1500.*4096.*or 0"):
        load_mapping(NicOptions, {"mtu_bytes": 1500})


@pytest.mark.parametrize("faults", ["", "dup=0.5"])
def test_losses_of_the_link_are_counters_of_the_nic(faults: str) -> None:
    device = open_device({"faults": faults})
    try:
        device.register(device.alloc(64), AccessFlags.REMOTE_READ)
        counters = device.counters()
        assert counters["link_lost_sending"] == counters["link_lost_receiving"] == 0
        assert len(counters) > 2
    finally:
        device.close()
