"""Ordering against a device, and writing to its registers."""

from __future__ import annotations

from emulator.pyverbs.mem_alloc import writebe32, writebe64


def udma_to_dev_barrier() -> None:
    """Writes before are visible to the device: it runs on this machine's processors."""


def udma_from_dev_barrier() -> None:
    """What the device has written is visible: it runs on this machine's processors."""


def mmio_write64_as_be(addr: int, val: int) -> None:
    """Write a 64-bit number, most significant byte first."""
    writebe64(addr, val)


def mmio_write32_as_be(addr: int, val: int) -> None:
    """Write a 32-bit number, most significant byte first."""
    writebe32(addr, val)
