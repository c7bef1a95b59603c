"""How many bytes background work may move: a token bucket. Sans-IO."""

from __future__ import annotations

from kvlane.errors import ConfigError

_NS_PER_S = 1_000_000_000
UNLIMITED = 0
"""As a rate."""


class TokenBucket:
    """Bytes that come in at a steady rate, and wait for up to a second's worth.

    Taking may leave it in debt, so that a block larger than the bucket passes too; then nothing is
    given until the debt is paid. So in any time t no more than ``rate * (t + 1 s)`` bytes and one
    batch are moved.
    """

    def __init__(self, bytes_per_s: int) -> None:
        """``UNLIMITED`` is no limit."""
        if bytes_per_s < 0:
            raise ConfigError(f"a rate must be 0 (no limit) or more, not {bytes_per_s}")
        self._rate = bytes_per_s
        self._tokens = float(bytes_per_s)
        self._filled_ns: int | None = None

    def is_open(self, now: int) -> bool:
        """Whether anything may be taken now; ``now`` in nanoseconds, never less than before."""
        if self._rate == UNLIMITED:
            return True
        if self._filled_ns is not None:
            gained = self._rate * (now - self._filled_ns) / _NS_PER_S
            self._tokens = min(self._tokens + gained, float(self._rate))
        self._filled_ns = now
        return self._tokens > 0

    def take(self, nbytes: int) -> None:
        """Note what is moved; the caller has seen that the bucket is open."""
        if self._rate != UNLIMITED:
            self._tokens -= nbytes

    def opens_in_ns(self) -> int:
        """How long from the last look on nothing is given; 0 when it is open."""
        if self._rate == UNLIMITED or self._tokens > 0:
            return 0
        return int(-self._tokens / self._rate * _NS_PER_S) + 1
