"""RoCEv2 over an ordinary UDP socket: no privileges, both ends may be anywhere.

The socket hides the IP header, which the ICRC covers, so both ends assume what Linux sends
from an unconnected socket that never fragments: identification 0 and "don't fragment" set.
The type of service, with its ECN bits, is real, so that switches may mark what they queue.
Peers that look at whole headers, such as HCAs, need the raw link.

Runs of equal frames to one peer travel as one call each way (UDP_SEGMENT, UDP_GRO): most
of the cost of a datagram is the trip through the kernel. The kernel gives all frames of a
call the same type of service, and coalesces only frames that have the same.
"""

from __future__ import annotations

import errno
import logging
import socket
from functools import partial
from ipaddress import AddressValueError, IPv4Address
from typing import Any

from emulator.link._udp_entry_kernels import RECEIVE, SEND
from emulator.link._udp_kernels import (
    ENVELOPE,
    GROUP,
    IPPROTO_UDP,
    MAX_PAYLOAD_BYTES,
    UDP_GRO,
    UDP_PORT,
)
from emulator.link._udp_receive_kernels import receive_burst
from emulator.link._udp_send_kernels import send_burst
from emulator.link.addressing import Address, Addressing, MappedAddressing, address_of
from emulator.link.calls import CompiledLink, LinkCalls
from emulator.link.frames import Burst
from emulator.link.gid import gid_of_halves
from emulator.link.socket_buffer import DEFAULT_BUFFER_BYTES, TRUESIZE_FACTOR, enlarge_buffers
from kvlane.calls import Callbacks
from kvlane.errors import ConfigError
from kvlane.verbs.records import new_records

__all__ = ["MAX_PAYLOAD_BYTES", "UdpLink"]

# Of linux/in.h; the socket module lacks them.
_IP_MTU_DISCOVER = 10
_IP_PMTUDISC_DO = 2

_log = logging.getLogger(__name__)


class UdpLink(CompiledLink):
    """A ``Link`` on one unconnected IPv4 UDP socket."""

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        addressing: Addressing | None = None,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        segmentation: bool = True,
    ) -> None:
        """Bind; port 0 takes a free one. ``ConfigError`` says what is wrong with the address.

        Without ``addressing``, GIDs are IPv4-mapped addresses and ports are the real ones.

        ``segmentation=False`` sends and receives one datagram a call, as on kernels without
        UDP_SEGMENT.
        """
        _check_address(host, port)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
            granted = enlarge_buffers(self._socket, buffer_bytes)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
            _bind(self._socket, host, port)
            coalescing = segmentation and _enable_gro(self._socket)
        except BaseException:
            self._socket.close()
            raise
        address: Address = self._socket.getsockname()
        rule = addressing or MappedAddressing()
        self._self = rule.endpoint(address)
        self._window_bytes = granted // TRUESIZE_FACTOR
        self._ports = new_records(UDP_PORT, 1)
        self._port = self._ports[0]
        self._port_addr = int(self._ports.ctypes.data)
        self._port.fd = self._socket.fileno()
        self._port.rule = rule.rule
        self._port.gid_hi, self._port.gid_lo, self._port.udp_port, _ = self._self
        self._port.segmentation, self._port.coalescing = segmentation, coalescing
        self._group = new_records(GROUP, 1)
        self._port.group = self._group.ctypes.data
        self._envelopes = new_records(ENVELOPE, 2)
        self._port.outward = self._envelopes.ctypes.data
        self._port.inward = self._port.outward + ENVELOPE.itemsize
        self._callbacks = Callbacks()
        self._port.tell_of_length = self._callbacks.add(partial(_tell_of_length, self._port))
        # They compile now and not at the first frame, whose peer may not wait so long.
        self._calls = LinkCalls(self._port_addr, SEND.address, RECEIVE.address, next_release=0)

    @property
    def calls(self) -> LinkCalls:
        """Sending and receiving, compiled."""
        return self._calls

    @property
    def gid(self) -> bytes:
        """The bound address, in the form that the addressing gives it."""
        return gid_of_halves(*self._self[:2])

    @property
    def gids(self) -> tuple[bytes, ...]:
        """The bound address alone."""
        return (self.gid,)

    @property
    def udp_port(self) -> int:
        """By which port frames name this end; the bound one, unless the addressing hides it."""
        return self._self.udp_port

    @property
    def source_port(self) -> int:
        """One for all flows: a socket has no more."""
        return self._self.source_port

    @property
    def receive_window_bytes(self) -> int:
        """What the socket buffer surely holds, in bytes of full-sized frames."""
        return self._window_bytes

    @property
    def segmentation(self) -> bool:
        """Whether runs of frames still go out as one call."""
        return bool(self._port.segmentation)

    @property
    def lost_sending(self) -> int:
        """Frames that the kernel refused for good: no route, too long, forbidden."""
        return int(self._port.lost_sending)

    @property
    def lost_receiving(self) -> int:
        """Frames that had no room in the burst that they arrived for."""
        return int(self._port.lost_receiving)

    def next_release(self, now: int) -> int | None:  # noqa: ARG002
        """Nothing is held back here."""
        return None

    def fileno(self) -> int:
        """The socket; -1 after ``close``."""
        return self._socket.fileno()

    def counters(self) -> dict[str, int]:
        """Frames lost on this side of the network."""
        return {
            "link_lost_sending": self.lost_sending,
            "link_lost_receiving": self.lost_receiving,
        }

    def close(self) -> None:
        """Close the socket."""
        self._port.fd = -1
        self._socket.close()

    def send(self, burst: Burst) -> int:
        """Send in order; a full socket buffer ends it, anything else that fails is a loss."""
        return int(send_burst(self._port_addr, burst.address))

    def receive(self, burst: Burst, now: int) -> int:  # noqa: ARG002 (holds nothing back)
        """Read what has arrived, until the socket is empty or the burst may be too full."""
        return int(receive_burst(self._port_addr, burst.address))


def _tell_of_length(port: Any, *_: int) -> int:
    """Called by the kernels for the first frame that is too long; there will be many."""
    _log.warning(
        "packets with %d bytes of UDP payload are too long for the way to %s and are "
        "lost; give this NIC a smaller mtu_bytes (0 takes what the interface holds)",
        port.too_long_bytes,
        address_of(int(port.too_long_for))[0],
    )
    return 0


def _check_address(host: str, port: int) -> None:
    try:
        address = IPv4Address(host)
    except AddressValueError:
        raise ConfigError(
            f"udp link: {host!r} is no IPv4 address; write one such as 127.0.0.1"
        ) from None
    if address.is_unspecified:
        raise ConfigError(
            f"udp link: {host} stands for every address, but peers need one GID; write the "
            f"address that they reach this host by"
        )
    if not 0 <= port <= 0xFFFF:
        raise ConfigError(f"udp link: port {port} is not in 0..65535; 0 takes a free one")


def _bind(udp: socket.socket, host: str, port: int) -> None:
    try:
        udp.bind((host, port))
    except OSError as error:
        hints = {
            errno.EADDRINUSE: "another process has it; stop that one, or choose another port",
            errno.EADDRNOTAVAIL: "no interface of this host has that address",
            errno.EACCES: "ports below 1024 need a privilege; choose a higher one",
        }
        hint = hints.get(error.errno or 0, error.strerror or str(error))
        raise ConfigError(f"udp link: cannot listen on {host}:{port}: {hint}") from error


def _enable_gro(udp: socket.socket) -> bool:
    """Ask for coalesced reads; False on a kernel without them."""
    try:
        udp.setsockopt(IPPROTO_UDP, UDP_GRO, 1)
    except OSError:
        return False
    return True
