"""Which row of a port's GID table is this end's address: RoCE v2, and of these the best."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

from kvlane.errors import ConfigError
from kvlane.hardware.abi import GidType
from kvlane.hardware.binding import Binding
from kvlane.hardware.failures import errno_of
from kvlane.hardware.options import AUTO_GID_INDEX
from kvlane.hardware.sysfs import port_folder

_UNSET = IPv6Address(0)
_SYSFS_ROCE_V2 = "RoCE v2"
"""What the kernel writes into ``gid_attrs/types`` (sysfs-class-infiniband)."""


@dataclass(frozen=True, slots=True)
class Gid:
    """A row of the table that is in use."""

    index: int
    address: IPv6Address
    is_roce_v2: bool

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts the better first: IPv4, global IPv6, link-local; then the lower index."""
        if self.address.ipv4_mapped is not None:
            return 0, self.index
        return 2 if self.address.is_link_local else 1, self.index

    def __str__(self) -> str:
        kind = "RoCE v2" if self.is_roce_v2 else "RoCE v1 or InfiniBand"
        return f"{self.index}: {address_text(self.address)} ({kind})"


def address_text(address: IPv6Address) -> str:
    """A GID as people write it."""
    return str(address.ipv4_mapped or address)


def choose_gid(binding: Binding, context: Any, port: int, wanted: int) -> Gid:
    """The row ``wanted``, or with ``AUTO_GID_INDEX`` the best one.

    ``ConfigError`` lists what the table has when that row is none of RoCE v2.
    """
    length = int(context.query_port(port).gid_tbl_len)
    if wanted >= length:
        raise ConfigError(
            f"gid_index: {context.name} port {port} has rows 0 to {length - 1}, not {wanted}; "
            f"in use: {_listed(list(_rows(binding, context, port, length)))}"
        )
    rows = list(_rows(binding, context, port, length))
    usable = [gid for gid in rows if gid.is_roce_v2 and wanted in (AUTO_GID_INDEX, gid.index)]
    if usable:
        return min(usable, key=lambda gid: gid.rank)
    if wanted == AUTO_GID_INDEX:
        raise ConfigError(
            f"{context.name} port {port} has no RoCE v2 address; in use: {_listed(rows)}. Give its "
            f"network interface an IP address, or choose another device or port"
        )
    raise ConfigError(
        f"gid_index: row {wanted} of {context.name} port {port} is no RoCE v2 address; in use: "
        f"{_listed(rows)}. Choose one of RoCE v2, or -1"
    )


def _listed(gids: list[Gid]) -> str:
    return ", ".join(map(str, gids)) or "none"


def _rows(binding: Binding, context: Any, port: int, length: int) -> Iterator[Gid]:
    """The rows in use; drivers differ in whether they refuse the others or show zeros."""
    for index in range(length):
        with suppress(binding.error):
            address = IPv6Address(context.query_gid(port, index).gid)
            if address != _UNSET:
                yield Gid(index, address, _is_roce_v2(binding, context, port, index))


def _is_roce_v2(binding: Binding, context: Any, port: int, index: int) -> bool:
    """From pyverbs where it can tell (44 and 59 can), else from the kernel's own file."""
    query = getattr(context, "query_gid_type", None)
    if query is not None:
        try:
            return int(query(port, index)) == GidType.ROCE_V2
        except binding.error as error:
            if errno_of(error) not in (errno.ENOSYS, errno.EOPNOTSUPP):
                raise
    types = port_folder(context.name, port) / "gid_attrs" / "types"
    return _read(types / str(index)) == _SYSFS_ROCE_V2


def _read(path: Path) -> str:
    """The text of a kernel file; empty where it cannot be read, as for a row not in use."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
