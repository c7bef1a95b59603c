"""Insides of objects of ConnectX devices: names only."""

from __future__ import annotations

from emulator.pyverbs._absent import AbsentObject


class Mlx5DvObj(AbsentObject):
    """The insides of an object."""
