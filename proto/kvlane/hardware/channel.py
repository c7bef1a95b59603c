"""A completion channel and its descriptor, which not every pyverbs shows."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from kvlane.errors import VerbsError
from kvlane.hardware.binding import Binding

_DESCRIPTORS = Path("/proc/self/fd")
_EVENT_FILE = "anon_inode:[infinibandevent]"
"""What the kernel calls the file of a completion channel or of asynchronous events."""
event_files = threading.Lock()
"""Held while anything that has such a file (channel or device) is opened or closed, so that the
one new descriptor around the opening of a channel is that channel's."""


def open_channel(binding: Binding, context: Any, event_file: str = _EVENT_FILE) -> tuple[Any, int]:
    """A completion channel of its own for one queue, and its non-blocking descriptor.

    One for each queue, because pyverbs takes an event of another queue than the expected one
    off the channel without acknowledging it, and such a queue can never be destroyed.
    """
    with event_files:
        before = _event_descriptors(event_file)
        channel = binding.cq.CompChannel(context)
        # pyverbs 44 has no property ``fd``; there the kernel tells what has been opened.
        fd = getattr(channel, "fd", None)
        new = [fd] if fd is not None else sorted(_event_descriptors(event_file) - before)
    if len(new) != 1:
        close_with_events(channel)
        raise VerbsError(
            f"this pyverbs does not tell the descriptor of a completion channel, and "
            f"{_DESCRIPTORS} shows {len(new)} new ones instead of one; take a later pyverbs"
        )
    os.set_blocking(new[0], False)
    return channel, new[0]


def close_with_events(opened: Any) -> None:
    """Close a channel or a device, which give the descriptors of their event files back."""
    with event_files:
        opened.close()


def _event_descriptors(event_file: str) -> set[int]:
    found: set[int] = set()
    for entry in _DESCRIPTORS.iterdir():
        try:
            if os.readlink(entry) == event_file:
                found.add(int(entry.name))
        except OSError:  # closed meanwhile, such as the one that lists this folder
            continue
    return found
