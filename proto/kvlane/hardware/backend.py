"""RDMA devices behind the verbs that agent and driver speak (``verbs: pyverbs``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvlane.config import load_mapping
from kvlane.hardware.binding import load_binding
from kvlane.hardware.device import HardwareDevice
from kvlane.hardware.options import HardwareOptions

options_type = HardwareOptions
"""What ``open_device`` takes."""


def open_device(options: Mapping[str, object]) -> HardwareDevice:
    """Open an RDMA device; see ``HardwareOptions`` for what ``options`` may hold."""
    chosen = load_mapping(HardwareOptions, options, where="device.options")
    return HardwareDevice(load_binding(), chosen)


def open_ports(options: Mapping[str, object], count: int) -> Sequence[HardwareDevice]:
    """Open an RDMA device ``count`` times: a context each, which shares nothing with the others."""
    return [open_device(options) for _ in range(count)]
