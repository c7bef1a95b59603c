"""Options of an RDMA device: what they may be, and what is said when they may not."""

from __future__ import annotations

from typing import Any

import pytest

from kvlane.config import load_mapping
from kvlane.errors import ConfigError
from kvlane.hardware.options import AUTO_GID_INDEX, AUTO_MTU, HardwareOptions


def test_everything_is_chosen_by_default() -> None:
    assert load_mapping(HardwareOptions, {}) == HardwareOptions(
        device="", port=1, gid_index=AUTO_GID_INDEX, mtu_bytes=AUTO_MTU
    )


def test_auto_is_a_word_for_the_default() -> None:
    assert load_mapping(HardwareOptions, {"gid_index": "auto", "mtu_bytes": "auto"}) == (
        HardwareOptions()
    )


@pytest.mark.parametrize("mtu_bytes", [0, 256, 4096])
def test_an_mtu_is_one_of_the_five_or_that_of_the_port(mtu_bytes: int) -> None:
    assert load_mapping(HardwareOptions, {"mtu_bytes": mtu_bytes}).mtu_bytes == mtu_bytes


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mtu_bytes": 1500}, "mtu_bytes.*0 for that of the port"),
        ({"port": 0}, "port.*out of range"),
        ({"gid_index": -2}, "gid_index.*out of range"),
        ({"gid_index": "automatic"}, "gid_index.*whole number"),
        ({"device": 0}, "device.*text"),
        ({"listen": "127.0.0.1:0"}, "listen is an unknown key"),
    ],
)
def test_what_cannot_be_used_is_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_mapping(HardwareOptions, options)
