"""RoCEv2 over an ordinary UDP socket: no privileges, both ends may be anywhere.

The socket hides the IP header, which the ICRC covers, so both ends assume what Linux sends
from an unconnected socket that never fragments: identification 0 and "don't fragment" set.
The type of service, with its ECN bits, is real, so that switches may mark what they queue.
Peers that look at whole headers, such as HCAs, need the raw link.

Runs of equal frames to one peer travel as one call each way (UDP_SEGMENT, UDP_GRO): most
of the cost of a datagram is the trip through the kernel. The kernel gives all frames of a
call the same type of service, and coalesces only frames that have the same. Where kernel or
interface cannot do that, a call carries as many messages of a frame each (``sendmmsg``,
``recvmmsg``), of any lengths and to any peers.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from functools import partial
from ipaddress import AddressValueError, IPv4Address
from typing import Any

from emulator.link._socket_kernels import MESSAGE
from emulator.link._udp_entry_kernels import RECEIVE, SEND
from emulator.link._udp_kernels import GROUP, MAX_MESSAGES, MAX_PAYLOAD_BYTES, PART, UDP_PORT
from emulator.link._udp_receive_kernels import receive_burst
from emulator.link._udp_send_kernels import send_burst
from emulator.link.addressing import Address, Addressing, MappedAddressing, address_of
from emulator.link.batching import AUTO, choose_batching
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
        batching: str = AUTO,
    ) -> None:
        """Bind; port 0 takes a free one. ``ConfigError`` says what is wrong with the address.

        Without ``addressing``, GIDs are IPv4-mapped addresses and ports are the real ones.

        ``batching`` is one of ``BATCHING``; ``ConfigError`` when the kernel has no segments and
        they are insisted on.
        """
        _check_address(host, port)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
            granted = enlarge_buffers(self._socket, buffer_bytes)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
            _bind(self._socket, host, port)
            chosen = choose_batching(self._socket, batching)
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
        self._port.segmentation, self._port.coalescing = chosen[:2]
        self._group = new_records(GROUP, 1)
        self._port.group = self._group.ctypes.data
        self._add_messages()
        self._callbacks = Callbacks()
        self._port.tell_of_length = self._callbacks.add(partial(_tell_of_length, self._port))
        self._port.tell_of_refusal = self._callbacks.add(partial(_tell_of_refusal, self._port))
        # The usual case is no news.
        level = logging.DEBUG if chosen.is_best else logging.INFO
        _log.log(level, "udp link %s:%d %s", *address, chosen)
        # They compile now and not at the first frame, whose peer may not wait so long.
        self._calls = LinkCalls(self._port_addr, SEND.address, RECEIVE.address, next_release=0)

    def _add_messages(self) -> None:
        """What socket calls read and write, for either direction."""
        self._messages = new_records(MESSAGE, 2 * MAX_MESSAGES)
        self._parts = new_records(PART, 2 * MAX_MESSAGES)
        self._port.outward = self._messages.ctypes.data
        self._port.outward_parts = self._parts.ctypes.data
        self._port.inward = self._port.outward + MAX_MESSAGES * MESSAGE.itemsize
        self._port.inward_parts = self._port.outward_parts + MAX_MESSAGES * PART.itemsize

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
        """Whether runs of frames still go out as segments, to peers that take them so."""
        return bool(self._port.segmentation)

    @property
    def coalescing(self) -> bool:
        """Whether the kernel may join frames that arrive."""
        return bool(self._port.coalescing)

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


def _tell_of_refusal(port: Any, code: int, peer: int, *_: int) -> int:
    """Called by the kernels for the first frames that went as messages instead of segments."""
    host, udp_port = address_of(peer)
    _log.warning(
        "the kernel refuses UDP_SEGMENT on the way to %s:%d (%s): %s goes by sendmmsg",
        host,
        udp_port,
        os.strerror(code),
        "what goes there" if port.segmentation else "everything",
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
