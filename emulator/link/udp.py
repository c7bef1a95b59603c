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
import struct
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.link.addressing import Address, Addressing, MappedAddressing
from emulator.link.frames import FRAME, Burst
from emulator.link.gid import gid_of_halves
from emulator.link.socket_buffer import DEFAULT_BUFFER_BYTES, TRUESIZE_FACTOR, enlarge_buffers
from kvlane.errors import ConfigError

# Of linux/udp.h and linux/in.h; the socket module lacks them.
_UDP_SEGMENT = 103
_UDP_GRO = 104
_IP_MTU_DISCOVER = 10
_IP_PMTUDISC_DO = 2

MAX_PAYLOAD_BYTES = 65507
"""UDP payload of the largest IPv4 packet; also the most that one call may carry."""
MAX_SEND_SEGMENTS = 64
"""Frames of one call; newer kernels take 128, all that know UDP_SEGMENT take 64."""
MAX_RECEIVE_SEGMENTS = 128
"""Frames that one read may bring. A smaller burst loses what does not fit."""

_DONT_FRAGMENT = 0x4000
_GRO_SIZE = struct.Struct("@i")
_SEGMENT_SIZE = struct.Struct("@H")
_TOS = struct.Struct("@i")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_GRO_SIZE.size) + socket.CMSG_SPACE(1)
"""Segment size, and one byte of IP_TOS."""
_LINK_IS_FULL = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)
_NO_SEGMENTATION = (errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP)
_PEER_FIELDS = ["dst_hi", "dst_lo", "dst_port"]
_CALL_FIELDS = [*_PEER_FIELDS, "tos"]
"""What frames must have in common to leave in one call."""

_Ancillary = list[tuple[int, int, bytes]]

_log = logging.getLogger(__name__)


class _Group(NamedTuple):
    """Frames ``first`` to ``end`` of a burst: contiguous, one peer, equal but for the last."""

    first: int
    end: int
    start: int
    stop: int
    segment_bytes: int
    tos: int


class UdpLink:
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
            self._coalescing = segmentation and _enable_gro(self._socket)
        except BaseException:
            self._socket.close()
            raise
        self._segmentation = segmentation
        self._segmentation_proven = False
        address: Address = self._socket.getsockname()
        self._addressing = addressing or MappedAddressing()
        self._self = self._addressing.endpoint(address)
        self._window_bytes = granted // TRUESIZE_FACTOR
        self._arrival = np.zeros(1, FRAME)
        self._arrival["dst_hi"], self._arrival["dst_lo"] = self._self[:2]
        self._arrival["dst_port"] = self._self.udp_port
        self._arrival["ip_frag"] = _DONT_FRAGMENT
        self.lost_sending = 0
        """Frames that the kernel refused for good: no route, too long, forbidden."""
        self._told_of_length = False
        self.lost_receiving = 0
        """Frames that had no room in the burst that they arrived for."""

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
        return self._segmentation

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
        self._socket.close()

    def send(self, burst: Burst) -> int:
        """Send in order; a full socket buffer ends it, anything else that fails is a loss."""
        if not burst.count:
            return 0
        arena = burst.arena.data
        frames = burst.frames.view(np.ndarray)[: burst.count]
        peers = frames[_PEER_FIELDS]
        for group in _groups(frames, MAX_SEND_SEGMENTS if self._segmentation else 1):
            peer = self._addressing.socket_address(*peers[group.first].item())
            if peer is None:
                self.lost_sending += group.end - group.first
                continue
            sent = self._send_group(arena[group.start : group.stop], group, peer)
            if sent < group.end - group.first:
                return group.first + sent
        return burst.count

    def _send_group(self, data: memoryview, group: _Group, peer: Address) -> int:
        """Send frames by one call where possible; how many are done with, lost or sent."""
        frames = group.end - group.first
        if frames == 1 or not self._segmentation:
            return self._send_singly(data, group, peer)
        size = _SEGMENT_SIZE.pack(group.segment_bytes)
        ancillary = [(socket.IPPROTO_UDP, _UDP_SEGMENT, size), *_tos_ancillary(group.tos)]
        try:
            self._socket.sendmsg([data], ancillary, 0, peer)
        except OSError as error:
            if error.errno in _LINK_IS_FULL:
                return 0
            if error.errno in _NO_SEGMENTATION:
                return self._send_refused(data, group, peer)
            self._lose(frames, error, group.segment_bytes, peer)
        else:
            self._segmentation_proven = True
        return frames

    def _send_refused(self, data: memoryview, group: _Group, peer: Address) -> int:
        """Send singly what the kernel did not take as a group, and learn from how that goes.

        If it goes, and no group ever went, then kernel or interface cannot segment. Frames
        above the MTU of one path fail both ways and say nothing about the others.
        """
        lost_before = self.lost_sending
        done = self._send_singly(data, group, peer)
        if done > self.lost_sending - lost_before and not self._segmentation_proven:
            self._segmentation = False
        return done

    def _send_singly(self, data: memoryview, group: _Group, peer: Address) -> int:
        ancillary = _tos_ancillary(group.tos)
        for index in range(group.end - group.first):
            start = index * group.segment_bytes
            frame = data[start : start + group.segment_bytes]
            try:
                if group.tos:
                    self._socket.sendmsg([frame], ancillary, 0, peer)
                else:  # a seventh faster, and most frames are so
                    self._socket.sendto(frame, peer)
            except OSError as error:
                if error.errno in _LINK_IS_FULL:
                    return index
                self._lose(1, error, len(frame), peer)
        return group.end - group.first

    def _lose(self, frames: int, error: OSError, nbytes: int, peer: Address) -> None:
        """Count frames that cannot be sent; of too long ones there will be many, so say it once."""
        self.lost_sending += frames
        if error.errno == errno.EMSGSIZE and not self._told_of_length:
            self._told_of_length = True
            _log.warning(
                "packets with %d bytes of UDP payload are too long for the way to %s and are "
                "lost; give this NIC a smaller mtu_bytes (0 takes what the interface holds)",
                nbytes,
                peer[0],
            )

    def receive(self, burst: Burst, now: int) -> int:  # noqa: ARG002 (holds nothing back)
        """Read until the socket is empty or the burst may be too full for another read.

        No more reads than descriptors: datagrams that become no frame must not hold the
        caller, which holds the lock of a NIC. MSG_TRUNC tells the length of what was cut off
        too, so that all frames of a cut read are counted.
        """
        arena = burst.arena.data
        frames = burst.frames.view(np.ndarray)
        used = 0
        for _ in range(len(frames)):
            if not self._has_room(len(frames) - burst.count, len(arena) - used, burst.count == 0):
                break
            try:
                nbytes, ancillary, flags, peer = self._socket.recvmsg_into(
                    [arena[used:]], _ANCILLARY_BYTES, socket.MSG_TRUNC
                )
            except OSError:
                # Empty or closed, or an error report, which reading has cleared.
                break
            if not nbytes:
                continue
            coalesced_bytes, self._arrival["tos"] = _segment_bytes_and_tos(ancillary)
            segment_bytes = coalesced_bytes or nbytes
            if flags & socket.MSG_TRUNC:
                self.lost_receiving += -(-nbytes // segment_bytes)
            else:
                free = frames[burst.count :]
                burst.count += self._describe(free, used, nbytes, segment_bytes, peer)
                used += nbytes
        return burst.count

    def _has_room(self, free_frames: int, free_bytes: int, is_first: bool) -> bool:
        """Whether no read can overflow the burst; the first is always worth a try."""
        if is_first:
            return free_frames > 0 and free_bytes > 0
        needed = MAX_RECEIVE_SEGMENTS if self._coalescing else 1
        return free_frames >= needed and free_bytes >= MAX_PAYLOAD_BYTES

    def _describe(
        self,
        free: NDArray[Any],
        start: int,
        nbytes: int,
        segment_bytes: int,
        peer: Address,
    ) -> int:
        """Write the descriptors of one read; how many there was room for."""
        segments = -(-nbytes // segment_bytes)
        count = min(segments, len(free))
        self.lost_receiving += segments - count
        sender = self._addressing.endpoint(peer)
        self._arrival["src_hi"], self._arrival["src_lo"] = sender.gid_hi, sender.gid_lo
        self._arrival["src_port"] = sender.source_port
        new = free[:count]
        new[:] = self._arrival
        new["offset"] = np.arange(start, start + nbytes, segment_bytes)[:count]
        new["length"] = segment_bytes
        if count == segments:
            new["length"][-1] = nbytes - (segments - 1) * segment_bytes
        return count


def _groups(frames: NDArray[Any], max_segments: int) -> Iterator[_Group]:
    """Cut frames into the fewest calls: equal lengths, but the last of a call may be shorter."""
    offset, length = frames["offset"], frames["length"]
    if len(frames) == 1:  # an acknowledgement, most often
        start, nbytes = int(offset[0]), int(length[0])
        yield _Group(0, 1, start, start + nbytes, nbytes, int(frames["tos"][0]))
        return
    follows = offset[1:] == offset[:-1] + length[:-1]
    for field in _CALL_FIELDS:
        follows &= frames[field][1:] == frames[field][:-1]
    ends_run = ~(follows & (length[1:] == length[:-1]))
    is_tail = follows & (length[1:] < length[:-1])
    total = len(frames)
    offsets, lengths, tos = offset.tolist(), length.tolist(), frames["tos"].tolist()
    first = 0
    for run_end in [*(np.flatnonzero(ends_run) + 1).tolist(), total]:
        while first < run_end:
            segment = lengths[first]
            most = min(max_segments, max(1, MAX_PAYLOAD_BYTES // max(1, segment)))
            end = min(first + most, run_end)
            stop = offsets[end - 1] + lengths[end - 1]
            fits = end < total and stop + lengths[end] - offsets[first] <= MAX_PAYLOAD_BYTES
            if end == run_end and fits and is_tail[end - 1] and end - first < max_segments:
                stop += lengths[end]
                end += 1
            yield _Group(first, end, offsets[first], stop, segment, tos[first])
            first = end


def _tos_ancillary(tos: int) -> _Ancillary:
    """What makes the kernel write a type of service other than the socket's, which is 0."""
    return [(socket.IPPROTO_IP, socket.IP_TOS, _TOS.pack(tos))] if tos else []


def _segment_bytes_and_tos(ancillary: _Ancillary) -> tuple[int, int]:
    """Length of the segments that were coalesced, 0 for a single datagram; type of service."""
    segment_bytes = tos = 0
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_UDP and kind == _UDP_GRO:
            segment_bytes = _GRO_SIZE.unpack(data)[0]
        elif level == socket.IPPROTO_IP and kind == socket.IP_TOS:
            tos = data[0]
    return segment_bytes, tos


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
        udp.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
    except OSError:
        return False
    return True
