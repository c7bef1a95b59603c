"""Where events go."""

from __future__ import annotations

import json
from typing import Protocol, TypeVar

from emulator.trace.events import Event, QpEvent
from emulator.trace.record_file import FileTarget, RecordFile

_E = TypeVar("_E", bound=Event)


class Sink(Protocol):
    """Takes events as they happen. It must not raise, being called in the midst of work."""

    def __call__(self, event: Event) -> None:
        """Take an event."""

    def close(self) -> None:
        """No more events are of interest; later ones are ignored."""


class Recording:
    """Events in memory, for tests and for people who ask questions of them."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)

    def close(self) -> None:
        """There is nothing to close; the events stay."""

    def of(self, kind: type[_E], *, qpn: int | None = None) -> list[_E]:
        """Events of a kind in their order, of all queue pairs or of one."""
        found = [event for event in self.events if isinstance(event, kind)]
        if qpn is None:
            return found
        return [event for event in found if isinstance(event, QpEvent) and event.qpn == qpn]

    def only(self, kind: type[_E], *, qpn: int | None = None) -> _E:
        """The one event of a kind; ``AssertionError`` shows what there is instead."""
        found = self.of(kind, qpn=qpn)
        if len(found) != 1:
            raise AssertionError(f"not one {kind.__name__} but {len(found)}: {found}")
        return found[0]

    def clear(self) -> None:
        """Forget everything so far."""
        self.events.clear()


class JsonLines:
    """Events in a file, one JSON object a line."""

    def __init__(self, target: FileTarget) -> None:
        self._file = RecordFile(target)

    @property
    def lost_events(self) -> int:
        """Events that came after the file could take no more."""
        return self._file.lost_records

    def __call__(self, event: Event) -> None:
        """Write an event."""
        self._file.append(json.dumps(event.as_record(), separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """End the file."""
        self._file.close()
