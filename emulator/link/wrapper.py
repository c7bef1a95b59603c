"""What all wrappers of a link have in common: they are where the link is."""

from __future__ import annotations

from emulator.link.frames import Burst, Link


class LinkWrapper:
    """A ``Link`` that hands everything on; a wrapper overrides what it watches or changes."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def gid(self) -> bytes:
        """The address of the link below."""
        return self._link.gid

    @property
    def gids(self) -> tuple[bytes, ...]:
        """The addresses of the link below."""
        return self._link.gids

    @property
    def udp_port(self) -> int:
        """The port of the link below."""
        return self._link.udp_port

    @property
    def source_port(self) -> int:
        """The source port of the link below."""
        return self._link.source_port

    @property
    def receive_window_bytes(self) -> int:
        """The window of the link below."""
        return self._link.receive_window_bytes

    def send(self, burst: Burst) -> int:
        """What the link below accepts."""
        return self._link.send(burst)

    def receive(self, burst: Burst, now: int) -> int:
        """What the link below delivers."""
        return self._link.receive(burst, now)

    def next_release(self, now: int) -> int | None:
        """What the link below holds back."""
        return self._link.next_release(now)

    def fileno(self) -> int:
        """The descriptor of the link below."""
        return self._link.fileno()

    def counters(self) -> dict[str, int]:
        """What the link below has counted."""
        return self._link.counters()

    def close(self) -> None:
        """Close the link below."""
        self._link.close()
