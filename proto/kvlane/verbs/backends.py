"""The table of verbs implementations; looked up by name, so that nobody imports a NIC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol, cast

from kvlane.errors import ConfigError
from kvlane.verbs.protocols import Device

BACKENDS: dict[str, str] = {
    "emulator": "emulator.backend",
    "pyverbs": "kvlane.hardware.backend",
}
"""Configuration name -> module that offers the ``Backend`` functions."""


class Backend(Protocol):
    """What a backend module offers at its top level."""

    options_type: type
    """The dataclass of settings (``kvlane.config``) that ``open_device`` reads options into."""

    def open_device(self, options: Mapping[str, object]) -> Device:
        """Open the NIC that ``options`` describe; ``ConfigError`` names what is wrong in them."""

    def open_ports(self, options: Mapping[str, object], count: int) -> Sequence[Device]:
        """Open ``count`` devices that differ in nothing that peers care about, so that as many
        threads may drive one each; fewer, one at least, where there are no more."""


def open_device(backend: str, options: Mapping[str, object]) -> Device:
    """Open a device of the named backend."""
    return _find(backend).open_device(options)


def open_ports(backend: str, options: Mapping[str, object], count: int) -> Sequence[Device]:
    """Open ``count`` devices of the named backend, or as many as it has of the kind."""
    return _find(backend).open_ports(options, count)


def options_type(backend: str) -> type:
    """The settings that a device of the named backend takes, to show or check them."""
    return _find(backend).options_type


def _find(backend: str) -> Backend:
    if backend not in BACKENDS:
        raise ConfigError(f"verbs: {backend!r} is unknown; one of {', '.join(sorted(BACKENDS))}")
    return cast(Backend, import_module(BACKENDS[backend]))
