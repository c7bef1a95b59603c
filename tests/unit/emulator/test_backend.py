"""The emulated NIC behind the verbs protocols: its options are checked.

What it shares with every other backend is in ``tests/unit/kvlane/test_verbs_contract.py``.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from emulator.backend import _numbered, open_device, open_ports
from emulator.nic.options import NicOptions
from kvlane.errors import ConfigError, VerbsError
from kvlane.verbs.protocols import QpOptions


@pytest.mark.parametrize(
    "options", [{"ack_timeout_code": 32}, {"max_send_wr": 0}, {"retry_count": 8}]
)
def test_options_out_of_range_are_named(options: dict[str, int]) -> None:
    with pytest.raises(VerbsError, match=next(iter(options))):
        QpOptions(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"lissten": "127.0.0.1:0"},
        {"mtu_bytes": 1500},
        {"faults": "drop=2"},
        {"listen": "here"},
        {"batching": "packets"},
        {"batching": "messages", "link": "pcie"},
        {"batching": "messages", "link": "raw", "interface": "eth0"},
    ],
)
def test_options_of_the_nic_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_device(options)


@pytest.mark.parametrize(
    ("options", "count"), [({}, 3), ({"link": "pcie"}, 3), ({"pcap": "x.pcapng"}, 1)]
)
def test_ports_of_one_kind_are_devices_of_their_own(
    options: dict[str, object], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ports = open_ports(options, 3)
    try:
        assert len(ports) == count
        assert len({port.name for port in ports}) == count
    finally:
        for port in ports:
            port.close()


def test_a_listen_address_with_a_port_numbers_them_on() -> None:
    options = NicOptions(listen="127.0.0.1:7000", seed=5)
    assert [_numbered(options, number).listen for number in (0, 2)] == [
        "127.0.0.1:7000",
        "127.0.0.1:7002",
    ]
    assert _numbered(options, 2).seed == 7
    assert _numbered(NicOptions(), 2) == NicOptions()


def test_a_port_that_is_taken_leaves_none_open() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        before = taken.getsockname()[1] - 1
        with pytest.raises(ConfigError, match=r"another process has it.*data\.workers to 1 "):
            open_ports({"listen": f"127.0.0.1:{before}"}, 2)
        open_device({"listen": f"127.0.0.1:{before}"}).close()


def test_ports_end_with_the_last_that_there_is() -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:65536.*data\.workers to 1 or less"):
        open_ports({"listen": "127.0.0.1:65535"}, 2)
