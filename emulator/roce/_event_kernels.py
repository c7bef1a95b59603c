"""Asynchronous events, in the order in which they happen (IBTA 1.7 section 11.6.3)."""

from __future__ import annotations

from typing import Any

from emulator.roce.state import MAX_EVENTS, counters_at, event_at
from kvlane.jit import kernel


@kernel
def push_event(nic: Any, event: int, subject: int) -> None:
    """Tell of ``event`` about the QP, CQ or SRQ of index ``subject``; lost when full."""
    if nic.event_tail - nic.event_head >= MAX_EVENTS:
        counters_at(nic.counters, 0).events_lost += 1
        return
    entry = event_at(nic.events, nic.event_tail % MAX_EVENTS)
    entry.event = event
    entry.subject = subject
    nic.event_tail += 1


@kernel
def take_event(nic: Any, out: Any) -> bool:
    """Move the oldest event into the record ``out``; False without one."""
    if nic.event_head == nic.event_tail:
        return False
    entry = event_at(nic.events, nic.event_head % MAX_EVENTS)
    out.event = entry.event
    out.subject = entry.subject
    nic.event_head += 1
    return True


@kernel
def forget_events(nic: Any) -> None:
    """Drop what nobody will fetch."""
    nic.event_head = nic.event_tail
