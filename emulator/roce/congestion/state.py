"""What the engine knows of any congestion control algorithm: its number and its room."""

from __future__ import annotations

from enum import IntEnum


class CongestionAlgorithm(IntEnum):
    """How a queue pair reacts to congestion notifications."""

    NONE = 0
    """It does not: everything leaves at once."""
    DCQCN = 1


CC_WORDS = 32
"""Signed 64-bit words that every queue pair has for the state of its algorithm."""
