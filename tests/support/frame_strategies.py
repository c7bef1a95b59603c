"""Frame descriptors for tests: by address text, and as a hypothesis strategy."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import numpy as np
from hypothesis import strategies as st

from emulator.link.frames import FRAME
from emulator.link.gid import gid_halves


def new_frame(src: str, dst: str, **fields: int) -> Any:
    """A ``FRAME`` record between two IPv6 addresses (IPv4 as ``::ffff:a.b.c.d``)."""
    return _frame(ip_address(src).packed, ip_address(dst).packed, fields)


def _frame(src: bytes, dst: bytes, fields: dict[str, int]) -> Any:
    frame = np.zeros(1, FRAME).view(np.recarray)[0]
    frame.src_hi, frame.src_lo = gid_halves(src)
    frame.dst_hi, frame.dst_lo = gid_halves(dst)
    for name, value in fields.items():
        frame[name] = value
    return frame


_PORTS = st.integers(0, 0xFFFF)
_BYTES = st.integers(0, 0xFF)
_MAPPED = bytes(10) + b"\xff\xff"


def _ipv4_frames() -> st.SearchStrategy[Any]:
    address = st.binary(min_size=4, max_size=4).map(lambda octets: _MAPPED + octets)
    fields = st.fixed_dictionaries(
        {
            "src_port": _PORTS,
            "dst_port": _PORTS,
            "tos": _BYTES,
            "ip_id": st.integers(0, 0xFFFF),
            "ip_frag": st.sampled_from((0, 0x4000, 0x8000, 0xC000)),
        }
    )
    return st.builds(_frame, address, address, fields)


def _ipv6_frames() -> st.SearchStrategy[Any]:
    address = st.binary(min_size=16, max_size=16).filter(lambda gid: gid[:12] != _MAPPED)
    fields = st.fixed_dictionaries(
        {
            "src_port": _PORTS,
            "dst_port": _PORTS,
            "tos": _BYTES,
            "flow_label": st.integers(0, 0xFFFFF),
        }
    )
    return st.builds(_frame, address, address, fields)


def frames() -> st.SearchStrategy[Any]:
    """Any descriptor that a whole IPv4 or IPv6 datagram can have."""
    return st.one_of(_ipv4_frames(), _ipv6_frames())
