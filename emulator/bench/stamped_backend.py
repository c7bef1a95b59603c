"""A verbs backend for benchmarks: emulated devices whose requests and completions are noted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from emulator import backend
from emulator.bench.stamps import StampedDevice, StampLog
from emulator.nic.options import NicOptions
from kvlane.verbs.backends import BACKENDS
from kvlane.verbs.protocols import Device

NAME = "stamped"
LOG_OPTION = "stamps"
"""Path of the log; all other options are those of the emulated NIC."""

options_type = NicOptions
"""What ``open_device`` takes besides ``stamps``."""


def open_device(options: Mapping[str, object]) -> Device:
    """Open an emulated NIC that notes what passes in the log that ``options`` name."""
    others = {name: value for name, value in options.items() if name != LOG_OPTION}
    log = StampLog(Path(str(options[LOG_OPTION])))
    return cast(Device, StampedDevice(cast(Device, backend.open_device(others)), log))


def open_ports(options: Mapping[str, object], count: int) -> list[Device]:  # noqa: ARG001
    """One, however many were asked for: there is one log."""
    return [open_device(options)]


@contextmanager
def stamped_backend() -> Iterator[None]:
    """Have the backend in the table; it is no part of the product, which never lists it."""
    BACKENDS[NAME] = __name__
    try:
        yield
    finally:
        del BACKENDS[NAME]
