"""Which peers there are, and starting those that can run here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from emulator.bench.peers.interface import Peer, PeerUnavailableError, Store
from emulator.bench.peers.memcached import MEMCACHED, MemcachedStore
from emulator.bench.peers.mooncake import MOONCAKE, MooncakeStore
from emulator.bench.peers.nixl import Nixl, NixlPath
from emulator.bench.peers.redis import REDIS, RedisStore
from emulator.bench.peers.valkey import VALKEY, open_valkey
from emulator.bench.report import MissingPeer, Report

LMCACHE = MissingPeer(
    "lmcache server", "there is no client for it here; its wheel needs torch with CUDA"
)
"""Always named, since it is a store that people compare with."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a peer has to hold and move."""

    block_bytes: int
    depth: int
    """Blocks of a batch."""


STORES: Mapping[str, Callable[[Shape], Store]] = {
    REDIS: lambda _: RedisStore(),
    VALKEY: lambda _: open_valkey(),
    MEMCACHED: lambda _: MemcachedStore(),
    MOONCAKE: lambda shape: MooncakeStore(shape.block_bytes, shape.depth),
}
"""How to start each store."""

T = TypeVar("T", bound=Peer)


def start(name: str, opener: Callable[[], T], undo: ExitStack, report: Report) -> T | None:
    """Start a peer until ``undo`` is done, and pause it.

    None, and a note in ``report``, where it cannot run.
    """
    try:
        peer = opener()
    except (PeerUnavailableError, OSError, RuntimeError) as error:
        report.miss([MissingPeer(name, str(error))])
        return None
    undo.callback(peer.close)
    peer.pause()
    return peer


def start_stores(
    shape: Shape, undo: ExitStack, report: Report, names: tuple[str, ...] = tuple(STORES)
) -> list[Store]:
    """The stores that can run here."""
    if names == tuple(STORES):
        report.miss([LMCACHE])
    found = (start(name, _opener(name, shape), undo, report) for name in names)
    return [store for store in found if store is not None]


def start_nixl(
    path: NixlPath, shape: Shape, blocks: int, undo: ExitStack, report: Report
) -> Nixl | None:
    """Both ends of NIXL, if it can run here."""
    return start(
        path.value, lambda: Nixl(path, shape.block_bytes, shape.depth, blocks), undo, report
    )


def _opener(name: str, shape: Shape) -> Callable[[], Store]:
    return lambda: STORES[name](shape)
