"""gRPC channel options of both ends; they must agree, so they stand in one place.

Keepalive finds a peer that vanished without closing its connection (power loss, a pulled
cable). The client may then ping no more often than the server tolerates, or the server
drops the connection with ``too_many_pings``.
"""

from __future__ import annotations

KEEPALIVE_TIME_MS = 10_000
"""Silence after which a side pings."""
KEEPALIVE_TIMEOUT_MS = 5_000
"""Wait for the answer to a ping; without one the connection is dead."""
MIN_PING_INTERVAL_MS = 5_000
"""Pings that come faster than this are abuse."""
FIRST_RECONNECT_BACKOFF_MS = 100
MAX_RECONNECT_BACKOFF_MS = 1_000
"""gRPC's own maximum of two minutes would hide an agent that was started again."""

_KEEPALIVE = (
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
)

CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    *_KEEPALIVE,
    # A DPU is reached directly; a proxy of the environment is never meant for it.
    ("grpc.enable_http_proxy", 0),
    # Channels of one process share connections and their backoff by default.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_BACKOFF_MS),
    ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_BACKOFF_MS),
)
"""For every channel to an agent."""

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    # With SO_REUSEPORT a second agent on the port would start and get half of the hosts.
    ("grpc.so_reuseport", 0),
)
"""For every server of an agent."""

assert MIN_PING_INTERVAL_MS < KEEPALIVE_TIME_MS
