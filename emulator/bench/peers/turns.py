"""A peer's turn: awake while it is measured, paused while others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from emulator.bench.peers.interface import Peer, PeerFailedError

T = TypeVar("T")


def awake(peer: Peer, work: Callable[[], T]) -> T:
    """Do ``work`` with a peer that is paused before and after it.

    ``PeerFailedError`` when the peer fails: its connection, its process, or what it answers.
    """
    peer.resume()
    try:
        return work()
    except (OSError, RuntimeError) as error:
        raise PeerFailedError(peer.name, f"{type(error).__name__}: {error}") from error
    finally:
        peer.pause()


def turn(peer: Peer, measure: Callable[[], float]) -> Callable[[], float]:
    """``measure`` as a side of a benchmark."""
    return lambda: awake(peer, measure)
