"""Domains of extended reliable connections, a transport that the emulator does not speak."""

from __future__ import annotations

from typing import ClassVar

from emulator.pyverbs._structure import i32, u32
from emulator.pyverbs.base import PyverbsCM, PyverbsObject, not_supported
from emulator.pyverbs.device import Context


class XRCDInitAttr(PyverbsObject):
    """Attributes of a domain."""

    comp_mask = u32()
    oflags = i32()
    fd = i32()

    def __init__(self, comp_mask: int, oflags: int, fd: int) -> None:
        super().__init__()
        self.comp_mask = comp_mask
        self.oflags = oflags
        self.fd = fd


class XRCD(PyverbsCM):
    """A domain; there is none here."""

    _kind: ClassVar[str] = "xrcd"

    def __init__(self, context: Context, init_attr: XRCDInitAttr) -> None:
        super().__init__()
        not_supported(f"Failed to allocate XRCD on {context.name} by file {init_attr.fd}")
