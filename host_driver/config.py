"""How a host connects: which NIC, how deep, how long to wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kvlane.errors import ConfigError
from kvlane.limits import DEFAULT_QUEUE_DEPTH, MAX_QUEUE_DEPTH

_NO_OPTIONS: Mapping[str, object] = MappingProxyType({})

MIN_STAGING_BYTES = 4096
MAX_SPIN_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverConfig:
    """Settings of one connection; ``ConfigError`` names the field that cannot be used."""

    verbs: str = "emulator"
    """Verbs backend, a name of ``kvlane.verbs.backends.BACKENDS``."""
    device_options: Mapping[str, object] = field(default_factory=lambda: _NO_OPTIONS)
    """Options of that backend's ``open_device``, each with its own default. ``listen`` of the
    emulator is by default the local address of the route to the agent, with a free port."""
    queue_depth: int = DEFAULT_QUEUE_DEPTH
    """Commands in flight that are asked for; the agent may grant fewer."""
    staging_bytes: int = 64 << 20
    """Registered memory through which buffers that are not registered are copied. As a rule of
    thumb, four batches of such blocks; zero-copy callers can make it small."""
    operation_timeout_ms: int = 30_000
    """Time for one store, retrieve, match, exist or delete, waiting for credits included."""
    control_timeout_ms: int = 5_000
    """Time for one call of the control plane."""
    emulated_start_timeout_ms: int = 120_000
    """Time for an agent of a target ``emulated:`` to come up; its very first start on a machine
    compiles kernels."""
    spin_us: int = 50
    """How long to look for answers before sleeping: less latency for more work of the processor,
    which others who are ready get meanwhile. 0 sleeps at once."""
    verify_checksums: bool = False
    """Sum every block (CRC-32) before a store and after a retrieve, and compare with the agent."""

    def __post_init__(self) -> None:
        if not 1 <= self.queue_depth <= MAX_QUEUE_DEPTH:
            raise ConfigError(f"queue_depth must be 1 to {MAX_QUEUE_DEPTH}, not {self.queue_depth}")
        if self.staging_bytes < MIN_STAGING_BYTES:
            raise ConfigError(
                f"staging_bytes must be at least {MIN_STAGING_BYTES}, not {self.staging_bytes}"
            )
        if not 0 <= self.spin_us <= MAX_SPIN_US:
            raise ConfigError(f"spin_us must be 0 to {MAX_SPIN_US}, not {self.spin_us}")
        for name in ("operation_timeout_ms", "control_timeout_ms", "emulated_start_timeout_ms"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")
