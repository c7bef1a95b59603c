"""Valkey: Redis's protocol and options, another server."""

from __future__ import annotations

from emulator.bench.peers.redis import RedisStore

VALKEY = "valkey"


def open_valkey() -> RedisStore:
    """A running server and its client."""
    return RedisStore(VALKEY, "valkey-server")
