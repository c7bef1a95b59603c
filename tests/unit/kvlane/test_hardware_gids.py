"""The row of the GID table that is taken: RoCE v2 only, IPv4 before IPv6 before link-local."""

from __future__ import annotations

from ipaddress import IPv6Address
from pathlib import Path

import pytest

from emulator.pyverbs.config import FabricConfig
from emulator.pyverbs.loader import installed
from kvlane.errors import ConfigError
from kvlane.hardware import sysfs
from kvlane.hardware.abi import GidType
from kvlane.hardware.backend import open_device
from kvlane.hardware.gids import choose_gid
from kvlane.hardware.options import AUTO_GID_INDEX
from tests.support.fake_rdma import ContextWithoutTypes, FakeContext, fake_binding

V1, V2 = GidType.IB_OR_ROCE_V1, GidType.ROCE_V2
LINK_LOCAL, GLOBAL, IPV4 = "fe80::1", "2001:db8::7", "::ffff:192.0.2.7"
MLX5_TABLE = {
    0: (LINK_LOCAL, V1),
    1: (LINK_LOCAL, V2),
    2: (IPV4, V1),
    3: (IPV4, V2),
    4: (GLOBAL, V2),
    6: ("::ffff:192.0.2.8", V2),
}


def chosen(gids: dict[int, tuple[str, GidType]], wanted: int = AUTO_GID_INDEX) -> int:
    context = FakeContext(gids=gids)
    return choose_gid(fake_binding(context), context, 1, wanted).index


def without(*rows: int) -> dict[int, tuple[str, GidType]]:
    return {index: row for index, row in MLX5_TABLE.items() if index not in rows}


@pytest.mark.parametrize(
    ("gone", "expected"), [((), 3), ((3,), 6), ((3, 6), 4), ((3, 6, 4), 1), ((2, 3, 6), 4)]
)
def test_ipv4_comes_before_global_ipv6_before_link_local(
    gone: tuple[int, ...], expected: int
) -> None:
    assert chosen(without(*gone)) == expected


@pytest.mark.parametrize("wanted", [1, 3, 4, 6])
def test_a_row_that_is_wanted_is_taken(wanted: int) -> None:
    assert chosen(MLX5_TABLE, wanted) == wanted


@pytest.mark.parametrize("wanted", [0, 2, 5])
def test_a_row_of_another_type_or_none_is_refused_with_those_there_are(wanted: int) -> None:
    with pytest.raises(ConfigError, match=f"row {wanted} of mlx5_0 port 1") as refusal:
        chosen(MLX5_TABLE, wanted)
    for row in ("2: 192.0.2.7 (RoCE v1 or InfiniBand)", "4: 2001:db8::7 (RoCE v2)"):
        assert row in str(refusal.value)


def test_a_table_without_roce_v2_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no RoCE v2 address; in use: 0: fe80::1"):
        chosen({0: (LINK_LOCAL, V1)})
    with pytest.raises(ConfigError, match="in use: none"):
        chosen({})


def test_a_row_behind_the_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="rows 0 to 7, not 8"):
        chosen(MLX5_TABLE, 8)


def test_the_table_of_the_drop_in_is_read_as_one_of_hardware() -> None:
    with installed(FabricConfig(addressing="ipv4")):
        device = open_device({})
        assert "GID 0: 127.0.0.1 (RoCE v2)" in device.name
        device.close()
        with pytest.raises(ConfigError, match="rows 0 to 15, not 200"):
            open_device({"gid_index": 200})
        with pytest.raises(ConfigError, match="row 5 of kvlane0 port 1 is no RoCE v2 address"):
            open_device({"gid_index": 5})


def test_a_pyverbs_that_cannot_tell_types_leaves_it_to_the_kernels_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysfs, "ROOT", tmp_path)
    types = tmp_path / "mlx5_0" / "ports" / "1" / "gid_attrs" / "types"
    types.mkdir(parents=True)
    for index, (_, kind) in MLX5_TABLE.items():
        (types / str(index)).write_text("RoCE v2\n" if kind is V2 else "IB/RoCE v1\n")
    context = ContextWithoutTypes(gids=without(3))
    gid = choose_gid(fake_binding(context), context, 1, AUTO_GID_INDEX)
    assert (gid.index, gid.address) == (6, IPv6Address("::ffff:192.0.2.8"))
