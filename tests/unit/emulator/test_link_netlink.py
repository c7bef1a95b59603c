"""What the kernel says of the loopback interface, which every machine has; and GID choice."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from socket import if_nametoindex

import pytest

from emulator.link.gid import gid_ip, ip_gid, source_index
from emulator.link.interface import find_interface
from emulator.link.netlink import AddressFlag, Netlink
from kvlane.errors import ConfigError

LOOPBACK = ip_address("127.0.0.1")


@pytest.fixture
def netlink() -> Iterator[Netlink]:
    with closing(Netlink()) as opened:
        yield opened


@pytest.fixture
def index() -> int:
    return if_nametoindex("lo")


def test_an_interface_by_index(netlink: Netlink, index: int) -> None:
    facts = netlink.link(index)
    assert (facts.mac, facts.flags & 1) == (bytes(6), 1)
    assert facts.mtu_bytes == int(Path("/sys/class/net/lo/mtu").read_text())
    assert facts.hardware_type == int(Path("/sys/class/net/lo/type").read_text())


def test_an_interface_that_there_is_not(netlink: Netlink) -> None:
    with pytest.raises(OSError) as raised:
        netlink.link(0x7FFF_FFFF)
    assert raised.value.errno == errno.ENODEV
    assert netlink.addresses(0x7FFF_FFFF) == []


def test_addresses_of_one_interface(netlink: Netlink, index: int) -> None:
    flags = {address.ip: address.flags for address in netlink.addresses(index)}
    assert not flags[LOOPBACK] & AddressFlag.TENTATIVE
    assert all(address.is_loopback for address in flags)


def test_the_next_hop_of_a_neighbour_is_itself(netlink: Netlink, index: int) -> None:
    assert netlink.next_hop(LOOPBACK, index) == LOOPBACK


def test_a_neighbour_that_nobody_has_asked_for(netlink: Netlink, index: int) -> None:
    assert netlink.neighbour(ip_address("192.0.2.55"), index) is None


def test_an_interface_without_ethernet_is_no_nic(netlink: Netlink) -> None:
    with pytest.raises(ConfigError, match="lo is not Ethernet"):
        find_interface("lo", netlink)
    with pytest.raises(ConfigError, match=r"no interface 'eth-9'; there are .*\blo\b"):
        find_interface("eth-9", netlink)
    with pytest.raises(ConfigError, match="name the interface"):
        find_interface("", netlink)


@pytest.mark.parametrize("text", ["192.0.2.1", "fe80::1", "2001:db8::1"])
def test_addresses_are_gids_and_back(text: str) -> None:
    assert gid_ip(ip_gid(ip_address(text))) == ip_address(text)


@pytest.mark.parametrize(
    ("table", "destination", "index"),
    [
        ("192.0.2.1 fe80::1 2001:db8::1", "192.0.2.9", 0),
        ("192.0.2.1 fe80::1 2001:db8::1", "fe80::9", 1),
        ("192.0.2.1 fe80::1 2001:db8::1", "2001:db8::9", 2),
        ("192.0.2.1 fe80::1 2001:db8::1", "2001:db8::1", 2),
        ("192.0.2.1 192.0.2.5", "192.0.2.5", 1),
        ("192.0.2.1 fe80::1", "2001:db8::9", 1),
        ("192.0.2.1 2001:db8::1", "fe80::9", 1),
        ("192.0.2.1", "2001:db8::9", 0),
    ],
)
def test_a_source_of_the_same_kind_is_chosen(table: str, destination: str, index: int) -> None:
    gids = [ip_gid(ip_address(text)) for text in table.split()]
    assert source_index(gids, ip_gid(ip_address(destination))) == index
