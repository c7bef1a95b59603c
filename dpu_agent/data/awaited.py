"""What the data path hands over to whoever looks after a colder tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dpu_agent.data.state import Notices
from kvlane.capsule import KeyArray, Opcode


@dataclass(frozen=True, slots=True)
class AwaitedBlocks:
    """Which command it is, and the keys whose blocks it awaits."""

    opcode: Opcode
    """RETRIEVE: they are to come into memory. STORE: they are to survive a crash. DELETE: not even
    a crash is to bring them back."""
    keys: KeyArray
    """Shape (n, 32), a copy."""
    connection: int
    """Its index in the server's table."""
    serial: int
    slot: int
    """Of the command."""
    number: int
    """Of the transfer, among those of the connection."""


class ColderTier(Protocol):
    """Who looks after the tier below memory. Called in a lane's thread, and quick."""

    @property
    def low_water_blocks(self) -> int:
        """Free slots of memory below which ``press`` is called."""

    @property
    def notices(self) -> Notices:
        """Which chains ``notice`` is called with."""

    def notice(self, chain: KeyArray) -> None:
        """A MATCH has asked for this chain; of shape (n, 32), a copy."""

    def take(self, awaited: AwaitedBlocks) -> None:
        """Have it done, and then let the server ``resume`` the command."""

    def press(self) -> None:
        """A command has found few slots free."""
