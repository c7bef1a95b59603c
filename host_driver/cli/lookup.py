"""Objects by dotted name, so that the command line reaches packages the driver never imports."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def find_attribute(dotted: str) -> Any:
    """What ``module:attribute`` names; importing the module happens here and not before."""
    module, _, attribute = dotted.partition(":")
    return getattr(import_module(module), attribute)
