"""Which device and port is taken; every refusal says what is there and what to do."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from emulator.pyverbs.config import FabricConfig
from emulator.pyverbs.loader import installed
from kvlane.errors import ConfigError, VerbsError
from kvlane.hardware.abi import GidType, LinkLayer, PortState
from kvlane.hardware.backend import open_device
from kvlane.hardware.options import HardwareOptions
from kvlane.hardware.selection import choose_port, device_names
from tests.support.fake_rdma import FakeContext, FakePort, FakePyverbsError, fake_binding

GIDS = {3: ("::ffff:192.0.2.7", GidType.ROCE_V2)}
DOWN = FakePort(state=PortState.DOWN)
OPTIONS = HardwareOptions()


def context(name: str = "mlx5_0", port: FakePort | None = None) -> FakeContext:
    return FakeContext(name, port or FakePort(), GIDS)


# Over the drop-in


def test_the_only_device_is_taken() -> None:
    with installed(FabricConfig(name="mlx5_")):
        device = open_device({})
        assert device.name.startswith("mlx5_0 port 1, GID 0: ")
        device.close()


def test_a_device_is_taken_by_name() -> None:
    with installed(FabricConfig(devices=3)):
        device = open_device({"device": "kvlane2"})
        assert device.name.startswith("kvlane2 ")
        device.close()


def test_a_device_that_is_absent_is_told_with_those_there_are() -> None:
    with (
        installed(FabricConfig(devices=2)),
        pytest.raises(ConfigError, match="no 'mlx5_0'; this host has kvlane0, kvlane1"),
    ):
        open_device({"device": "mlx5_0"})


def test_no_device_is_told_with_what_to_check() -> None:
    with (
        installed(FabricConfig(devices=0)),
        pytest.raises(ConfigError, match="no RDMA device; check `rdma link`"),
    ):
        open_device({})


def test_a_port_that_is_absent_is_told_with_those_there_are() -> None:
    with installed(FabricConfig()), pytest.raises(ConfigError, match="ports 1 to 1, not 2"):
        open_device({"port": 2})


@pytest.mark.parametrize(("wanted", "used"), [(0, 2048), (2048, 2048), (512, 512)])
def test_the_mtu_is_that_of_the_port_or_a_smaller_one(wanted: int, used: int) -> None:
    with installed(FabricConfig(mtu_bytes=2048)):
        device = open_device({"mtu_bytes": wanted})
        assert device.name.endswith(f", MTU {used}")
        device.close()


def test_an_mtu_above_that_of_the_port_is_refused() -> None:
    with (
        installed(FabricConfig(mtu_bytes=1024)),
        pytest.raises(ConfigError, match="active RoCE MTU of 1024 bytes, less than 4096"),
    ):
        open_device({"mtu_bytes": 4096})


# In states that the drop-in has not


def test_without_the_kernels_modules_pyverbs_raises_and_there_is_no_device() -> None:
    binding = fake_binding(listing=FakePyverbsError("Failed to get devices list"))
    assert device_names(binding) == []
    with pytest.raises(ConfigError, match="no RDMA device"):
        choose_port(binding, OPTIONS)


def test_a_port_that_is_down_is_refused_and_its_device_closed() -> None:
    only = context(port=DOWN)
    with pytest.raises(VerbsError, match=r"mlx5_0 port 1 is DOWN, not ACTIVE; .*ip link set"):
        choose_port(fake_binding(only), OPTIONS)
    assert only.closed


def test_an_infiniband_port_is_refused_with_how_to_make_it_ethernet() -> None:
    only = context(port=FakePort(link_layer=LinkLayer.INFINIBAND))
    with pytest.raises(ConfigError, match=r"InfiniBand.*LINK_TYPE_P1=2"):
        choose_port(fake_binding(only), OPTIONS)


def test_of_several_the_first_that_is_active_is_taken() -> None:
    refused = replace(context("mlx5_0"), refusal=FakePyverbsError("no", errno.EACCES))
    first, second, third = context("mlx5_1", DOWN), context("mlx5_2"), context("mlx5_3")
    chosen = choose_port(fake_binding(refused, first, second, third), OPTIONS)
    assert chosen.context is second
    assert (chosen.gid.index, chosen.mtu_bytes, chosen.max_message_bytes) == (3, 1024, 1 << 30)
    assert (first.closed, second.closed) == (True, False)


def test_a_named_device_that_is_down_is_not_replaced_by_another() -> None:
    contexts = context("mlx5_0", DOWN), context("mlx5_1")
    with pytest.raises(VerbsError, match="mlx5_0 port 1 is DOWN"):
        choose_port(fake_binding(*contexts), replace(OPTIONS, device="mlx5_0"))


def test_when_none_is_active_each_is_told_with_its_reason() -> None:
    contexts = context("mlx5_0", DOWN), context("mlx5_1", FakePort(state=PortState.INIT))
    with pytest.raises(VerbsError, match=r"none of mlx5_0, mlx5_1.*is DOWN.*is INIT"):
        choose_port(fake_binding(*contexts), OPTIONS)


def test_a_device_that_may_not_be_opened_is_told_with_how_to_get_access() -> None:
    only = replace(context(), refusal=FakePyverbsError("Failed to open device", errno.EACCES))
    with pytest.raises(VerbsError, match=r"opening mlx5_0 failed.*/dev/infiniband/uverbs"):
        choose_port(fake_binding(only), OPTIONS)
