"""What the policy ``reuse`` has learnt, as bytes: records of past requests, with ages."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache.policy._reuse_history_kernels import KEPT, RECORD
from dpu_agent.cache.policy._reuse_layout_kernels import FEATURES, STRATA, VALUES
from kvlane.errors import ConfigError

_MAGIC = b"kvlane reuse 1\n\0"
_HEADER = np.dtype([("magic", "S16"), ("count", "<u4"), ("crc32", "<u4")])
_SAVED = np.dtype([("age_ms", "<f8"), ("traits", "<i8")])
"""An age is negative where reuse had not come by then."""
_LEAST_AGE_MS = 1e-3
"""So that the sign of an age is one."""
_AGAIN = "it is no state of the policy reuse, or damaged; delete it to start without"


def write_learnt(records: NDArray[np.void], history: NDArray[np.void], now_ms: float) -> bytes:
    """The records of a ring, the oldest first."""
    logged = int(history["logged"][0])
    numbers = np.arange(max(0, logged - KEPT), logged) % KEPT
    kept = records[numbers]
    ended = np.where(kept["ended_ms"] == 0.0, -now_ms, kept["ended_ms"])
    saved = np.zeros(len(kept), _SAVED)
    ages = np.maximum(np.abs(ended) - kept["began_ms"], _LEAST_AGE_MS)
    saved["age_ms"] = np.copysign(ages, ended)
    saved["traits"] = kept["traits"]
    body = saved.tobytes()
    header = np.array([(_MAGIC, len(saved), zlib.crc32(body))], _HEADER)
    return header.tobytes() + body


def read_learnt(learnt: bytes, records: NDArray[np.void]) -> int:
    """Put saved records into an empty ring; how many. ``ConfigError`` if they are none."""
    if len(learnt) < _HEADER.itemsize:
        raise ConfigError(f"learnt state of {len(learnt)} bytes: {_AGAIN}")
    header = np.frombuffer(learnt[: _HEADER.itemsize], _HEADER)[0]
    body = learnt[_HEADER.itemsize :]
    count = int(header["count"])
    is_ours = bytes(header["magic"]) == _MAGIC.rstrip(b"\0") and count <= KEPT
    if not is_ours or len(body) != count * _SAVED.itemsize or zlib.crc32(body) != header["crc32"]:
        raise ConfigError(f"learnt state of {len(learnt)} bytes: {_AGAIN}")
    saved = np.frombuffer(body, _SAVED)
    traits, ages = saved["traits"], saved["age_ms"]
    is_age = np.isfinite(ages) & (np.abs(ages) >= _LEAST_AGE_MS)
    is_known = (traits >= 0) & (traits < STRATA * VALUES**FEATURES)
    if not (is_age & is_known).all():
        raise ConfigError(f"learnt state of {len(learnt)} bytes: {_AGAIN}")
    target: NDArray[np.void] = np.zeros(count, RECORD)
    target["ended_ms"] = ages
    target["traits"] = traits
    records[:count] = target
    return count
