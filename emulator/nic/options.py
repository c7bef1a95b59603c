"""Options of an emulated NIC, as they stand under ``device.options`` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.link.faults import FaultPlan
from emulator.nic.links import INTERFACE_DOC, LINK_DOC, LINKS, UDP, require_interface
from kvlane.config import parse_endpoint, setting
from kvlane.errors import ConfigError
from kvlane.verbs.enums import Mtu

AUTO_MTU = 0
"""As ``mtu_bytes``: what the interface holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicOptions:
    """One emulated port."""

    link: str = setting(UDP, LINK_DOC, choices=LINKS)
    interface: str = setting("", INTERFACE_DOC)
    listen: str = setting(
        "127.0.0.1:0",
        "Address and UDP port of the NIC's RoCEv2 datagrams on the udp link; port 0 takes a "
        "free one.",
    )
    mtu_bytes: int = setting(
        AUTO_MTU,
        "Largest path MTU: 256, 512, 1024, 2048 or 4096; 0 takes the largest that fits the "
        "interface, or the interface of the listen address. Peers use the smaller of theirs.",
        rule="Leave it 0, unless some link between the hosts has a smaller MTU than both ends.",
    )
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
    )
    pcap: str = setting(
        "",
        "File that gets every packet, for Wireshark (pcapng); empty for none. An older file is "
        "replaced.",
    )
    trace: str = setting(
        "",
        "File that gets an event, one JSON object a line, for every packet, change of state, "
        "retransmission and NAK; empty for none. It costs much time.",
    )
    seed: int = setting(0, "Seed of faults and first PSNs; 0 draws one, so that two runs differ.")

    def validate(self) -> None:
        """Relations and values; ``ConfigError`` names what to write instead."""
        parse_endpoint(self.listen)
        require_interface(self.link, self.interface)
        FaultPlan.parse(self.faults)
        if self.mtu_bytes == AUTO_MTU:
            return
        try:
            Mtu.from_bytes_size(self.mtu_bytes)
        except ValueError as error:
            raise ConfigError(f"mtu_bytes: {error}, or 0 for what the interface holds") from None
