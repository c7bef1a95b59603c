"""Devices in states that the drop-in for pyverbs cannot show: down, InfiniBand, odd GID tables.

Only what is asked before a port is used; nothing here carries data.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from types import SimpleNamespace
from typing import Any

from kvlane.hardware.abi import GidType, LinkLayer, PortState
from kvlane.hardware.binding import Binding
from kvlane.verbs.enums import Mtu


class FakePyverbsError(Exception):
    """As ``PyverbsRDMAError``."""

    def __init__(self, text: str, error_code: int = -1) -> None:
        super().__init__(text)
        self.error_code = error_code


@dataclass
class FakePort:
    """What ``query_port`` tells."""

    state: int = PortState.ACTIVE
    link_layer: int = LinkLayer.ETHERNET
    active_mtu: int = Mtu.MTU_1024
    max_msg_sz: int = 1 << 30
    gid_tbl_len: int = 8


@dataclass
class FakeContext:
    """An open device; ``gids`` are rows of address and type, at their index."""

    name: str = "mlx5_0"
    port: FakePort = field(default_factory=FakePort)
    gids: dict[int, tuple[str, GidType]] = field(default_factory=dict)
    ports: int = 1
    refusal: Exception | None = None
    """What opening it raises."""
    closed: bool = False

    def query_device(self) -> Any:
        return SimpleNamespace(phys_port_cnt=self.ports)

    def query_port(self, port: int) -> FakePort:
        return self.port

    def query_gid(self, port: int, index: int) -> Any:
        text, _ = self.gids.get(index, ("::", GidType.IB_OR_ROCE_V1))
        return SimpleNamespace(gid=IPv6Address(text).exploded)

    def query_gid_type(self, port: int, index: int) -> int:
        if index not in self.gids:
            raise FakePyverbsError("no such row", errno.EINVAL)
        return self.gids[index][1]

    def close(self) -> None:
        self.closed = True


class ContextWithoutTypes(FakeContext):
    """As of a pyverbs from before ``query_gid_type``."""

    query_gid_type = None  # type: ignore[assignment]


def fake_binding(*contexts: FakeContext, listing: Exception | None = None) -> Binding:
    """A pyverbs that lists and opens these devices, or fails to list any."""
    by_name = {context.name: context for context in contexts}

    def get_device_list() -> list[Any]:
        if listing is not None:
            raise listing
        return [SimpleNamespace(name=name.encode()) for name in by_name]

    def open_context(*, name: str) -> FakeContext:
        context = by_name[name]
        if context.refusal is not None:
            raise context.refusal
        return context

    device = SimpleNamespace(get_device_list=get_device_list, Context=open_context)
    nothing = SimpleNamespace()
    return Binding(nothing, nothing, device, *[nothing] * 4, FakePyverbsError)
