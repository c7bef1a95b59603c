"""The descriptor of a completion channel: from pyverbs, or found among those of the process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvlane.errors import VerbsError
from kvlane.hardware.binding import Binding
from kvlane.hardware.channel import close_with_events, open_channel
from tests.support.fake_rdma import FakeContext, fake_binding

EVENT_FILE = "anon_inode:[eventfd]"
"""Stands for the file of a channel, which no test can open without a device."""


@pytest.fixture
def opened() -> Iterator[list[int]]:
    descriptors: list[int] = []
    yield descriptors
    for fd in descriptors:
        os.close(fd)


def binding_with(channel: Callable[[object], Any]) -> Binding:
    return replace(fake_binding(), cq=SimpleNamespace(CompChannel=channel))


def test_a_pyverbs_that_shows_it_is_believed(opened: list[int]) -> None:
    def channel(context: object) -> Any:
        opened.append(os.eventfd(0))
        return SimpleNamespace(fd=opened[0])

    _, fd = open_channel(binding_with(channel), FakeContext(), EVENT_FILE)
    assert fd == opened[0]
    assert not os.get_blocking(fd)


def test_otherwise_it_is_the_new_one_of_its_kind(opened: list[int]) -> None:
    opened.append(os.eventfd(0))

    def channel(context: object) -> Any:
        opened.extend([os.open("/dev/null", os.O_RDONLY), os.eventfd(0)])
        return SimpleNamespace()

    _, fd = open_channel(binding_with(channel), FakeContext(), EVENT_FILE)
    assert fd == opened[2]
    assert not os.get_blocking(fd)
    assert os.get_blocking(opened[0])


@pytest.mark.parametrize("count", [0, 2])
def test_when_it_cannot_be_told_the_channel_is_closed_again(count: int, opened: list[int]) -> None:
    closed: list[bool] = []

    def channel(context: object) -> Any:
        opened.extend(os.eventfd(0) for _ in range(count))
        return SimpleNamespace(close=lambda: closed.append(True))

    with pytest.raises(VerbsError, match=f"shows {count} new ones"):
        open_channel(binding_with(channel), FakeContext(), EVENT_FILE)
    assert closed == [True]


def test_nobody_else_opens_or_closes_such_a_file_meanwhile(opened: list[int]) -> None:
    """Of two threads that connect at once each would see the other's descriptor too."""
    other = os.eventfd(0)
    closer = threading.Thread(
        target=close_with_events, args=(SimpleNamespace(close=lambda: os.close(other)),)
    )

    def channel(context: object) -> Any:
        closer.start()
        closer.join(0.2)
        assert closer.is_alive(), "it did not wait"
        opened.append(os.eventfd(0))
        return SimpleNamespace()

    _, fd = open_channel(binding_with(channel), FakeContext(), EVENT_FILE)
    closer.join()
    assert fd == opened[0] != other
