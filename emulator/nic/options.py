"""Options of an emulated NIC, as they stand under ``device.options`` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.link.batching import AUTO, BATCHING, BATCHING_DOC
from emulator.link.faults import FaultPlan
from emulator.nic.links import (
    AUTO_MTU,
    DEVICE_LINK_DOC,
    DEVICE_LINKS,
    INTERFACE_DOC,
    MTU_DOC,
    MTU_RULE,
    PCIE,
    UDP,
    require_batching,
    require_interface,
    require_mtu,
)
from emulator.pcie.channels import AUTO_CHANNELS
from kvlane.config import parse_endpoint, setting
from kvlane.errors import ConfigError
from kvlane.limits import MAX_CHANNELS

_OF_PACKETS = ("interface", "mtu_bytes", "congestion_bps", "faults", "pcap", "trace")


@dataclass(frozen=True, slots=True, kw_only=True)
class NicOptions:
    """One emulated port."""

    link: str = setting(UDP, DEVICE_LINK_DOC, choices=DEVICE_LINKS)
    interface: str = setting("", INTERFACE_DOC)
    listen: str = setting(
        "127.0.0.1:0",
        "Address and UDP port of the NIC's RoCEv2 datagrams on the udp link; port 0 takes a "
        "free one.",
        rule="An agent takes as many ports as it has workers, from this one on without a gap.",
    )
    batching: str = setting(AUTO, BATCHING_DOC, choices=BATCHING)
    mtu_bytes: int = setting(AUTO_MTU, f"{MTU_DOC} Peers use the smaller of theirs.", rule=MTU_RULE)
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
    channels: int = setting(
        AUTO_CHANNELS,
        "Processors that copy together on the pcie link, as the DMA engines of a DPU do; 1 leaves "
        "it to the thread that drives the device. 0 takes one for every two that the process may "
        "use, divided by the ports that are opened, up to 4; one port takes both of two.",
        minimum=AUTO_CHANNELS,
        maximum=MAX_CHANNELS,
    )
    seed: int = setting(0, "Seed of faults and first PSNs; 0 draws one, so that two runs differ.")

    def validate(self) -> None:
        """Relations and values; ``ConfigError`` names what to write instead."""
        parse_endpoint(self.listen)
        if self.link == PCIE:
            self._require_no_packets()
        elif self.channels != AUTO_CHANNELS:
            raise ConfigError(f"channels: only the pcie link has them; write link: {PCIE}, or 0")
        require_batching(self.link, self.batching)
        require_interface(self.link, self.interface)
        FaultPlan.parse(self.faults)
        require_mtu(self.mtu_bytes)

    def _require_no_packets(self) -> None:
        for name in _OF_PACKETS:
            if getattr(self, name):
                raise ConfigError(
                    f"{name}: the pcie link has no packets; remove it, or write link: {UDP}"
                )
