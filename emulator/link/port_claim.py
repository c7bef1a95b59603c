"""UDP sockets that hold port 4791 of an interface's addresses, and receive nothing.

They keep the kernel from answering RoCE packets with "port unreachable", and keep a second
NIC, emulated or soft-RoCE, away from the same addresses.
"""

from __future__ import annotations

import errno
import socket

from emulator.link.interface import Interface
from emulator.link.netlink import IpAddress
from emulator.link.packet_filter import NOTHING, attach_filter
from kvlane.errors import ConfigError
from kvlane.limits import ROCE_V2_UDP_PORT


class PortClaim:
    """Port 4791 on every address of an interface."""

    def __init__(self, interface: Interface) -> None:
        """``ConfigError`` when somebody else has it."""
        self._sockets: list[socket.socket] = []
        self.by_version: dict[int, socket.socket] = {}
        """A socket for each IP version, to send other datagrams by."""
        try:
            for address in interface.addresses:
                claimed = self._claim(interface, address)
                self.by_version.setdefault(address.version, claimed)
        except BaseException:
            self.close()
            raise

    def _claim(self, interface: Interface, address: IpAddress) -> socket.socket:
        is_ipv4 = address.version == 4
        claimed = socket.socket(socket.AF_INET if is_ipv4 else socket.AF_INET6, socket.SOCK_DGRAM)
        self._sockets.append(claimed)
        claimed.setblocking(False)
        attach_filter(claimed, NOTHING)
        scope = () if is_ipv4 else (0, interface.index if address.is_link_local else 0)
        try:
            claimed.setsockopt(
                socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.name.encode() + b"\0"
            )
            claimed.bind((str(address), ROCE_V2_UDP_PORT, *scope))
        except OSError as error:
            raise ConfigError(_refusal(interface, address, error)) from error
        return claimed

    def close(self) -> None:
        """Give the port back."""
        for claimed in self._sockets:
            claimed.close()


def _refusal(interface: Interface, address: IpAddress, error: OSError) -> str:
    about = f"raw link: cannot hold UDP port {ROCE_V2_UDP_PORT} of {address} on {interface.name}"
    if error.errno == errno.EADDRINUSE:
        return f"{about}: another NIC, emulated or soft-RoCE, has it; use one of them only"
    return f"{about}: {error.strerror}"
