"""Options of an RDMA device, as they stand under ``device.options`` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from kvlane.config import setting
from kvlane.errors import ConfigError
from kvlane.verbs.enums import Mtu

AUTO_GID_INDEX = -1
AUTO_MTU = 0
"""As ``mtu_bytes``: the active MTU of the port."""
MAX_PORT_NUMBER = 255
MAX_GID_INDEX = 255
"""Both are one byte in an address handle (``ibv_ah_attr``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareOptions:
    """One port of an RDMA device that pyverbs opens."""

    device: str = setting(
        "",
        "Name of the RDMA device, such as mlx5_0 (`rdma link` lists them); empty takes the only "
        "one, or of several the first whose port is active.",
    )
    port: int = setting(1, "Number of the port on that device.", minimum=1, maximum=MAX_PORT_NUMBER)
    gid_index: int = setting(
        AUTO_GID_INDEX,
        "Row of the port's GID table that is this end's address; it must be of type RoCE v2. "
        "auto takes an IPv4 address, else a global IPv6 address, else a link-local one.",
        rule="Leave it at auto, unless the port has several addresses; then both ends must use "
        "addresses that reach each other.",
        minimum=AUTO_GID_INDEX,
        maximum=MAX_GID_INDEX,
        words={"auto": AUTO_GID_INDEX},
    )
    mtu_bytes: int = setting(
        AUTO_MTU,
        "Largest path MTU: 256, 512, 1024, 2048 or 4096, at most that of the port; 0 takes that "
        "of the port. Peers use the smaller of theirs.",
        rule="Leave it 0, unless some link between the hosts has a smaller MTU than both ends.",
        words={"auto": AUTO_MTU},
    )

    def validate(self) -> None:
        """Values; ``ConfigError`` names what to write instead."""
        if self.mtu_bytes == AUTO_MTU:
            return
        try:
            Mtu.from_bytes_size(self.mtu_bytes)
        except ValueError as error:
            raise ConfigError(f"mtu_bytes: {error}, or 0 for that of the port") from None
