"""Forking. A child has its own copy of all memory, and opens ports of its own."""

from __future__ import annotations

from emulator.pyverbs.libibverbs_enums import ibv_fork_status


def fork_init() -> None:
    """Prepare for forking: nothing needs preparing, since no hardware shares memory."""


def is_fork_initialized() -> ibv_fork_status:
    """That there is no need to prepare."""
    return ibv_fork_status.IBV_FORK_UNNEEDED
