"""Every limit of the contract, with the relations between them asserted at import."""

from __future__ import annotations

KEY_BYTES = 32
"""A block key."""

CAPSULE_VERSION = 1
MAX_CAPSULE_BYTES = 65536
"""The largest command or response capsule; each receive buffer has this size."""

MAX_KEYS_PER_CAPSULE = 1024
"""Keys of one command; with the largest descriptor it must still fit a capsule."""

DEFAULT_QUEUE_DEPTH = 32
MAX_QUEUE_DEPTH = 256
"""Commands a session may have in flight (its credits)."""

CREDIT_SLACK = 8
"""Receive buffers beyond the credits, so that an excess is answered and not just RNR-NAKed."""

MAX_SESSIONS = 256
MAX_WORKERS = 64
MAX_CHANNELS = 16
"""Processors that copy together for one device of the pcie link."""
MAX_REGIONS_PER_SESSION = 1024

MIN_BLOCK_BYTES = 64
MAX_BLOCK_BYTES = 1 << 30

DEFAULT_CONTROL_PORT = 50057
ROCE_V2_UDP_PORT = 4791

CONTROL_MAJOR = 1
CONTROL_MINOR = 0
CONTROL_PATCH = 0
"""Version of the control API and the capsules (semantic versioning)."""

assert 64 + MAX_KEYS_PER_CAPSULE * (KEY_BYTES + 24) <= MAX_CAPSULE_BYTES
assert DEFAULT_QUEUE_DEPTH <= MAX_QUEUE_DEPTH
