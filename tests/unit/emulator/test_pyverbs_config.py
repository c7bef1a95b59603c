"""Options of the emulated devices: what is refused, and what follows from them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from emulator.pyverbs.config import FabricConfig
from kvlane.config import load_file, load_mapping
from kvlane.errors import ConfigError


def test_a_file_may_hold_everything(tmp_path: Path) -> None:
    path = tmp_path / "devices.yaml"
    path.write_text("devices: 2\nmtu_bytes: 1024\nfaults: drop=0.1\nname: nic\n", encoding="utf-8")
    config = load_file(FabricConfig, path)
    assert (config.devices, config.mtu_bytes, config.faults, config.name) == (
        2,
        1024,
        "drop=0.1",
        "nic",
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"devices": -1}, "devices"),
        ({"devices": 65}, "devices"),
        ({"mtu_bytes": 1500}, "mtu_bytes.*0 for what the interface holds"),
        ({"listen": "localhost"}, "listen"),
        ({"listen": "127.0.0.1:65535", "devices": 2}, "ports up to 65535"),
        ({"faults": "lose=1"}, "faults"),
        ({"addressing": "ipv6"}, "addressing"),
        ({"link": "tcp"}, "link"),
        ({"link": "raw"}, "interface: the raw link needs one"),
        ({"batching": "packets"}, "batching"),
        ({"batching": "messages", "link": "raw", "interface": "eth0"}, "only the udp link"),
        ({"interface": "eth0"}, "only the raw link has one"),
        ({"link": "raw", "interface": "eth0", "devices": 2}, "write devices: 1"),
        ({"name": "nic 0"}, "name"),
        ({"name": "../nic"}, "name"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_mapping(FabricConfig, options, "here")


def test_the_mtu_may_be_left_to_the_interface() -> None:
    assert FabricConfig().mtu_bytes == 0
    assert load_mapping(FabricConfig, {"mtu_bytes": 0}, "here").mtu_bytes == 0


def test_devices_listen_one_behind_the_other() -> None:
    config = FabricConfig(listen="127.0.0.1:5000", devices=3)
    assert [config.endpoint(index)[1] for index in range(3)] == [5000, 5001, 5002]


def test_a_forked_child_listens_elsewhere() -> None:
    config = FabricConfig(listen="127.0.0.1:5000")
    assert config.endpoint(0, in_child=True) == ("127.0.0.1", 0)


def test_recordings_are_named_apart_where_there_may_be_several() -> None:
    assert FabricConfig().record_path("", "nic0", in_child=True) == ""
    one, two = FabricConfig(), FabricConfig(devices=2)
    assert one.record_path("/tmp/a.pcapng", "nic0", in_child=False) == "/tmp/a.pcapng"
    assert two.record_path("/tmp/a.pcapng", "nic1", in_child=False) == "/tmp/a-nic1.pcapng"
    in_child = one.record_path("a.pcapng", "nic0", in_child=True)
    assert in_child == f"a-nic0-{os.getpid()}.pcapng"
