"""What holds for every test: reproducible examples, and no proxy between 127.0.0.1 and itself."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Without the JIT a kernel is some hundred times slower; fewer examples keep the suite short.
_EXAMPLES = 15 if os.environ.get("NUMBA_DISABLE_JIT") == "1" else 60
# The first example may compile a kernel, so no time limit and no complaint about slowness.
_SLOW = [HealthCheck.too_slow]

settings.register_profile(
    "default",
    derandomize=True,
    deadline=None,
    max_examples=_EXAMPLES,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "explore",
    deadline=None,
    max_examples=50 * _EXAMPLES,
    print_blob=True,
    suppress_health_check=_SLOW,
)
settings.load_profile("default")

# gRPC honours a proxy even for 127.0.0.1, and a proxy cannot reach a port of this machine.
for _name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.upper(), None)


def pytest_configure(config: pytest.Config) -> None:
    """Once, in the process that starts the workers of a parallel run."""
    is_worker = hasattr(config, "workerinput")
    if not is_worker and getattr(config.option, "numprocesses", None):
        from tests.support.warm_kernels import warm_kernels

        warm_kernels()
