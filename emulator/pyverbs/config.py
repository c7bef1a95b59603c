"""Options of the emulated devices, as they stand on the command line and in a YAML file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from emulator.link.addressing import Addressing, MappedAddressing, VirtualAddressing
from emulator.link.batching import AUTO, BATCHING, BATCHING_DOC
from emulator.link.faults import FaultPlan
from emulator.nic.links import (
    AUTO_MTU,
    INTERFACE_DOC,
    LINK_DOC,
    LINKS,
    MTU_DOC,
    MTU_RULE,
    RAW,
    UDP,
    require_batching,
    require_interface,
    require_mtu,
)
from kvlane.config import parse_endpoint, setting
from kvlane.errors import ConfigError

MAX_DEVICES = 64
MAX_PORT = 65535
IPV4 = "ipv4"
ADDRESSING: dict[str, type[Addressing]] = {"virtual": VirtualAddressing, IPV4: MappedAddressing}


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricConfig:
    """Emulated devices of a process, all alike."""

    devices: int = setting(1, "Number of devices.", minimum=0, maximum=MAX_DEVICES)
    name: str = setting("kvlane", "Their name; a number is put behind it, from 0 up.")
    link: str = setting(UDP, LINK_DOC, choices=LINKS)
    interface: str = setting("", INTERFACE_DOC)
    listen: str = setting(
        "127.0.0.1:0",
        "Address and UDP port of the first device, the next ports are those of the others; "
        "port 0 takes free ones, and so does a forked child.",
        check=parse_endpoint,
    )
    addressing: str = setting(
        "virtual",
        "What GIDs are: with 'virtual' every device has an IPv6 GID of its own by which others "
        "find it wherever it listens; with 'ipv4' it is the address it listens on, "
        "IPv4-mapped, and peers must listen on port 4791. On the raw link they are the "
        "addresses of the interface.",
        choices=tuple(ADDRESSING),
    )
    batching: str = setting(AUTO, BATCHING_DOC, choices=BATCHING)
    mtu_bytes: int = setting(AUTO_MTU, MTU_DOC, rule=MTU_RULE)
    congestion_bps: int = setting(
        0,
        "Line rate of the port in bit/s, from which congestion control (DCQCN) slows down when "
        "the network marks packets; 0 for no congestion control. Give it to both ends.",
        minimum=0,
    )
    faults: str = setting(
        "",
        "Faults that the link injects both ways, such as drop=0.01,dup=0.01,reorder=0.01; "
        "empty for none.",
        check=FaultPlan.parse,
    )
    seed: int = setting(0, "Seed of faults and first PSNs; 0 draws one, so that two runs differ.")
    pcap: str = setting(
        "",
        "File that gets every packet, for Wireshark (pcapng); empty for none. With several "
        "devices, or in a forked child, device and process are named before its suffix.",
    )
    trace: str = setting(
        "",
        "File that gets an event, one JSON object a line, for every packet, change of state, "
        "retransmission and NAK; empty for none. Named like the file of pcap.",
    )

    def validate(self) -> None:
        """Relations and values; ``ConfigError`` names what to write instead."""
        require_mtu(self.mtu_bytes)
        if self.endpoint(max(0, self.devices - 1))[1] > MAX_PORT:
            raise ConfigError(f"listen: {self.devices} devices need ports up to {MAX_PORT}")
        require_batching(self.link, self.batching)
        require_interface(self.link, self.interface)
        if self.link == RAW and self.devices > 1:
            raise ConfigError("devices: an interface has one NIC; write devices: 1 with link: raw")
        if not self.name.isidentifier():
            raise ConfigError(f"name: {self.name!r} is no device name; write one such as kvlane")

    @property
    def gids_are_addresses(self) -> bool:
        """Whether a GID is the IP address of its device."""
        return self.link == RAW or self.addressing == IPV4

    def endpoint(self, index: int, *, in_child: bool = False) -> tuple[str, int]:
        """Where device ``index`` listens; port 0 for any that is free."""
        host, port = parse_endpoint(self.listen)
        return host, port + index if port and not in_child else 0

    def record_path(self, path_text: str, device: str, *, in_child: bool) -> str:
        """Where a recording of a device goes; empty for nowhere."""
        if not path_text:
            return ""
        path = Path(path_text)
        stem = f"{path.stem}-{device}" if self.devices > 1 or in_child else path.stem
        if in_child:
            stem = f"{stem}-{os.getpid()}"
        return str(path.with_name(stem + path.suffix))
