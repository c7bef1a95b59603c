"""Options of an emulated NIC, as they stand under ``device.options`` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.link.faults import FaultPlan
from kvlane.config import parse_endpoint, setting
from kvlane.errors import ConfigError
from kvlane.verbs.enums import Mtu


@dataclass(frozen=True, slots=True, kw_only=True)
class NicOptions:
    """One emulated port on the UDP link."""

    listen: str = setting(
        "127.0.0.1:0",
        "Address and UDP port of the NIC's RoCEv2 datagrams; port 0 takes a free one.",
    )
    mtu_bytes: int = setting(
        4096, "Largest path MTU: 256, 512, 1024, 2048 or 4096. Peers use the smaller of theirs."
    )
    faults: str = setting(
        "",
        "Faults that the link injects both ways, such as drop=0.01,dup=0.01,reorder=0.01; "
        "empty for none.",
    )
    seed: int = setting(0, "Seed of faults and first PSNs; 0 draws one, so that two runs differ.")

    def validate(self) -> None:
        """Relations and values; ``ConfigError`` names what to write instead."""
        parse_endpoint(self.listen)
        FaultPlan.parse(self.faults)
        try:
            Mtu.from_bytes_size(self.mtu_bytes)
        except ValueError as error:
            raise ConfigError(f"mtu_bytes: {error}") from None
