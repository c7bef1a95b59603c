"""DMA buffers of graphics devices, which an emulated NIC cannot reach."""

from __future__ import annotations

from emulator.pyverbs.base import PyverbsCM, not_supported


class DmaBuf(PyverbsCM):
    """A DMA buffer; there is none here."""

    def __init__(self, size: int, gpu: int = 0, gtt: int = 0) -> None:
        super().__init__()
        not_supported(
            f"Failed to allocate dmabuf of size {size} on gpu {gpu}{', GTT' if gtt else ''}"
        )
