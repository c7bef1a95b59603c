"""IP addresses of connection management: what programs name, and which device has them."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address
from typing import NamedTuple

from emulator.link.gid import gid_ip
from emulator.nic.links import RAW
from emulator.pyverbs import fabric
from emulator.pyverbs._structure import PlainObject
from emulator.pyverbs.librdmacm_enums import RAI_PASSIVE, rdma_port_space
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError
from emulator.wire.ip_cm import IpAddress, PortSpace

_SPACES = {
    rdma_port_space.RDMA_PS_TCP: PortSpace.TCP,
    rdma_port_space.RDMA_PS_UDP: PortSpace.UDP,
}


class SocketAddress(NamedTuple):
    """An IP address and a port number of a port space."""

    ip: IpAddress
    port: int


def port_space(number: int) -> PortSpace:
    """The port space of an ID; those of InfiniBand and IPoIB have no meaning on RoCE."""
    try:
        return _SPACES[rdma_port_space(number)]
    except (KeyError, ValueError):
        raise PyverbsRDMAError(
            f"Failed to create CM ID of port space 0x{number:x}", errno.EPROTONOSUPPORT
        ) from None


def addresses_of(device: fabric.RdmaDevice) -> tuple[IpAddress, ...]:
    """The IP addresses by which programs name a device.

    On the raw link they are those of its interface, which is opened to see them.
    """
    if device.config.link == RAW:
        return tuple(gid_ip(gid) for gid in device.open().gids)
    return (ip_address(device.config.endpoint(device.index)[0]),)


def device_of(ip: IpAddress | None) -> fabric.RdmaDevice | None:
    """The first device that has an address; the first of all for none or any."""
    for device in fabric.devices():
        if ip is None or ip.is_unspecified or ip in addresses_of(device):
            return device
    return None


def source_towards(ip: IpAddress) -> IpAddress | None:
    """The address by which this host reaches another; ``None`` without a device for it."""
    device = device_of(ip) or device_of(None)
    if device is None:
        return None
    same_kind = [own for own in addresses_of(device) if own.version == ip.version]
    alike = [own for own in same_kind if own.is_link_local == ip.is_link_local]
    return next(iter([*alike, *same_kind]), None)


class AddrInfo(PlainObject):
    """Source and destination of an ID, looked up by name or number."""

    def __init__(
        self,
        src: str | bytes | None = None,
        dst: str | bytes | None = None,
        src_service: str | bytes | None = None,
        dst_service: str | bytes | None = None,
        port_space: int = 0,
        flags: int = 0,
    ) -> None:
        """With the flag ``RAI_PASSIVE`` the source is where to listen, and there is no other."""
        super().__init__()
        self.port_space = port_space or rdma_port_space.RDMA_PS_TCP
        self.flags = flags
        self.src: SocketAddress | None = None
        self.dst: SocketAddress | None = None
        if flags & RAI_PASSIVE or src is not None or src_service is not None:
            self.src = _look_up(src, src_service, passive=True)
        if not flags & RAI_PASSIVE and (dst is not None or dst_service is not None):
            self.dst = _look_up(dst, dst_service, passive=False)

    @property
    def is_passive(self) -> bool:
        """Whether it is for listening."""
        return bool(self.flags & RAI_PASSIVE)


def _look_up(
    node: str | bytes | None, service: str | bytes | None, *, passive: bool
) -> SocketAddress:
    flags = socket.AI_PASSIVE if passive else 0
    try:
        found = socket.getaddrinfo(
            node, 0 if service is None else service, type=socket.SOCK_STREAM, flags=flags
        )
    except (OSError, UnicodeError) as error:
        raise PyverbsRDMAError("Failed to get Address Info", errno.EADDRNOTAVAIL) from error
    # IPv4 first: it is what the sockets of emulated devices speak.
    family, *_, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    ip = str(address[0]).partition("%")[0]
    assert family in (socket.AF_INET, socket.AF_INET6)
    return SocketAddress(ip_address(ip), int(address[1]))
