"""Steering rules for raw packets, which the emulated device does not have."""

from __future__ import annotations

from emulator.pyverbs._absent import AbsentAttributes, AbsentObject


class FlowAttr(AbsentAttributes):
    """Attributes of a rule."""


class Flow(AbsentObject):
    """A rule."""
