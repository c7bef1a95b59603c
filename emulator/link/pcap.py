"""A link that writes every packet to a file that Wireshark reads."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address
from itertools import islice

from emulator.link.datagrams import Datagram, datagrams_of
from emulator.link.frames import Burst, Link
from emulator.link.pcapng import (
    PacketDirection,
    enhanced_packet,
    interface_description,
    section_header,
)
from emulator.link.wrapper import LinkWrapper
from emulator.trace.record_file import FileTarget, RecordFile
from emulator.wire.errors import WireError
from emulator.wire.icrc import icrc
from emulator.wire.ip import emit_headers, emit_packet
from emulator.wire.packet import ICRC_BYTES, MIN_PACKET_BYTES, emit_icrc
from kvlane.limits import ROCE_V2_UDP_PORT
from kvlane.seams import Clock

_APPLICATION = "kvlane emulator"


def shown_packet(datagram: Datagram) -> tuple[bytes, str]:
    """The IP packet that a capture shows for a frame, and a comment on it.

    NICs without privilege share hosts and listen on any port, but readers know RoCEv2 by
    its destination port alone. So that port is shown, the real one goes to the comment, and
    the ICRC, which covers it, changes by exactly that difference: right stays right and
    wrong stays wrong.
    """
    payload, frame = datagram
    port = int(frame["dst_port"])
    if port == ROCE_V2_UDP_PORT:
        return emit_packet(frame, payload), ""
    shown = frame.copy()
    shown["dst_port"] = ROCE_V2_UDP_PORT
    if len(payload) >= MIN_PACKET_BYTES:
        body, sent = payload[:-ICRC_BYTES], payload[-ICRC_BYTES:]
        real, pretended = (icrc(emit_headers(each, len(payload)), body) for each in (frame, shown))
        change = real ^ pretended
        payload = body + emit_icrc(int.from_bytes(sent, "little") ^ change)
    return emit_packet(shown, payload), f"sent to UDP port {port}"


class PcapLink(LinkWrapper):
    """Writes what the link below accepts and delivers, as pcapng.

    Timestamps are those of ``clock``, which counts from an arbitrary start. A file that
    cannot be written ends the capture and nothing else.
    """

    def __init__(self, link: Link, target: FileTarget, clock: Clock) -> None:
        super().__init__(link)
        self._clock = clock
        self._file = RecordFile(target)
        address = IPv6Address(link.gid)
        name = f"{address.ipv4_mapped or address} port {link.udp_port}"
        self._file.append(section_header(_APPLICATION) + interface_description(name), 0)

    @property
    def lost_packets(self) -> int:
        """Packets that came after the file could take no more."""
        return self._file.lost_records

    def send(self, burst: Burst) -> int:
        """Hand on, then write what was accepted."""
        accepted = self._link.send(burst)
        sent = islice(datagrams_of(burst), accepted)
        self._write(sent, PacketDirection.OUTBOUND, self._clock())
        return accepted

    def receive(self, burst: Burst, now: int) -> int:
        """Write what has arrived."""
        count = self._link.receive(burst, now)
        self._write(datagrams_of(burst), PacketDirection.INBOUND, now)
        return count

    def _write(self, datagrams: Iterable[Datagram], direction: PacketDirection, at_ns: int) -> None:
        blocks = [
            block
            for datagram in datagrams
            if (block := _packet_block(datagram, direction, at_ns)) is not None
        ]
        if blocks:
            self._file.append(b"".join(blocks), len(blocks))

    def close(self) -> None:
        """Close the link below and the file."""
        super().close()
        self._file.close()


def _packet_block(datagram: Datagram, direction: PacketDirection, at_ns: int) -> bytes | None:
    """The block of a frame; ``None`` for one so long that no IP packet carries it."""
    try:
        packet, comment = shown_packet(datagram)
    except WireError:
        return None
    return enhanced_packet(packet, at_ns, direction, comment)
