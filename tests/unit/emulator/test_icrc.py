"""The invariant CRC: published packets, and the kernel against its plain twin."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.wire._icrc_kernels import ICRC_WORK, continued_sum, frame_icrc
from emulator.wire.errors import WireError
from emulator.wire.icrc import icrc
from emulator.wire.ip import emit_headers
from emulator.wire.packet import ICRC_BYTES
from tests.support.frame_strategies import frames, new_frame

UC_SEND_ONLY = bytes.fromhex("2460ffff000000d3 00cf1710") + (
    b"F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P\x00\x00"
)

# Packets with the ICRC that hardware or another implementation gave them.
VECTORS = {
    "CNP of a ConnectX-4 Lx": (
        "45c2003c718c400040119161 0a0011010a001201 000012b700280000",
        bytes.fromhex("8100ffff40000118 00000000") + bytes(16),
        "82fd002a",
    ),
    "UC SEND_ONLY over IPv4": (
        "4501004004784000 4011b4d5 c0a80007c0a80007 c00012b7002caca2",
        UC_SEND_ONLY,
        "78f353f3",
    ),
    "UC SEND_ONLY over IPv6": (
        "6e21face002c11ff 20220000000000000000000000001023 20230000000000000000000000001024"
        "c00012b7002ce7c5",
        UC_SEND_ONLY,
        "3e5b743b",
    ),
    "RoCEv1 WRITE_ONLY": (
        "6020000000281b40 00000000000000000000ffff0f000002 00000000000000000000ffff0f000002",
        bytes.fromhex(
            "0a70ffff0000010a 80a788bc 000055d4c0726000 000047b3 00000005 0000000001000000"
        ),
        "e3d856bb",
    ),
    "RoCEv1 ACK": (
        "6020000000141b40 00000000000000000000ffff0f000002 00000000000000000000ffff0f000002",
        bytes.fromhex("1140ffff00000109 00a788c0 00000005"),
        "25f0c038",
    ),
}


def kernel_icrc(frame: Any, bth_onwards: bytes, lead: int = 0) -> int:
    """The kernel's answer for a frame that starts ``lead`` bytes into its arena.

    It is the same when the frame comes again, and when part of it is remembered.
    """
    arena = np.frombuffer(b"\xa5" * lead + bth_onwards, np.uint8).copy()
    before = arena.copy()
    guarded = np.full(ICRC_WORK.itemsize + 8, 0x5A, np.uint8)
    guarded[:-8] = 0
    answers = {
        frame_icrc(frame, arena.ctypes.data + lead, len(bth_onwards), guarded.ctypes.data)
        for _ in range(3)
    }
    assert (arena == before).all()
    assert (guarded[-8:] == 0x5A).all()
    assert len(answers) == 1
    return answers.pop()


@pytest.mark.parametrize(("headers", "rest", "wire"), VECTORS.values(), ids=VECTORS)
def test_published_packets(headers: str, rest: bytes, wire: str) -> None:
    assert icrc(bytes.fromhex(headers), rest).to_bytes(4, "little").hex() == wire


@pytest.mark.parametrize(
    ("frame", "rest", "wire"),
    [
        (
            new_frame(
                "::ffff:10.0.17.1",
                "::ffff:10.0.18.1",
                dst_port=4791,
                tos=0xC2,
                ip_id=0x718C,
                ip_frag=0x4000,
            ),
            VECTORS["CNP of a ConnectX-4 Lx"][1],
            "82fd002a",
        ),
        (
            new_frame(
                "::ffff:192.168.0.7",
                "::ffff:192.168.0.7",
                src_port=49152,
                dst_port=4791,
                tos=1,
                ip_id=1144,
                ip_frag=0x4000,
            ),
            UC_SEND_ONLY,
            "78f353f3",
        ),
        (
            new_frame("2022::1023", "2023::1024", src_port=49152, dst_port=4791, tos=226),
            UC_SEND_ONLY,
            "3e5b743b",
        ),
    ],
    ids=["CNP", "UC over IPv4", "UC over IPv6"],
)
def test_published_packets_by_the_kernel(frame: Any, rest: bytes, wire: str) -> None:
    assert int(kernel_icrc(frame, rest)).to_bytes(4, "little").hex() == wire


@given(frame=frames(), rest=st.binary(min_size=12, max_size=300), lead=st.integers(0, 15))
def test_kernel_and_twin_agree(frame: Any, rest: bytes, lead: int) -> None:
    headers = emit_headers(frame, len(rest) + ICRC_BYTES)
    assert kernel_icrc(frame, rest, lead) == icrc(headers, rest)


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("2001:db8::1", "2001:db8::ffff:a00:2"),  # not mapped, though its lower half looks so
        ("2001:db8::eeee:eeee:a00:1", "::ffff:10.0.0.2"),  # the destination decides
        ("::ffff:255.0.0.1", "2001:db8::2"),
    ],
)
def test_kernel_and_twin_agree_on_the_address_family(src: str, dst: str) -> None:
    frame = new_frame(src, dst, src_port=0xC000, dst_port=4791)
    headers = emit_headers(frame, len(UC_SEND_ONLY) + ICRC_BYTES)
    assert kernel_icrc(frame, UC_SEND_ONLY) == icrc(headers, UC_SEND_ONLY)


CHANGES = {
    "src_lo": 1,
    "dst_lo": 1,
    "src_hi": 1,
    "dst_hi": 1,
    "src_port": 1,
    "dst_port": 1,
    "ip_id": 1,
    "ip_frag": 1,
}


@given(
    frame=frames(),
    rest=st.binary(min_size=12, max_size=64),
    changes=st.lists(st.sampled_from([*CHANGES, "congestion", "length", "bytes"]), max_size=12),
)
def test_what_is_remembered_of_one_frame_is_not_used_for_another(
    frame: Any, rest: bytes, changes: list[str]
) -> None:
    work = np.zeros(1, ICRC_WORK)
    for change in ["bytes", "bytes", "bytes", *changes]:
        if change in CHANGES:
            frame[change] ^= CHANGES[change]
        elif change == "length":
            rest += b"\0"
        else:
            at = 4 if change == "congestion" else 11
            rest = rest[:at] + bytes([rest[at] ^ 0xC1]) + rest[at + 1 :]
        data = np.frombuffer(rest, np.uint8)
        crc = frame_icrc(frame, data.ctypes.data, len(rest), work.ctypes.data)
        assert crc == icrc(emit_headers(frame, len(rest) + ICRC_BYTES), rest)
        payload = rest[12:]
        at = (int(data.ctypes.data), 12, len(payload))
        assert continued_sum(7, *at, work.ctypes.data) == zlib.crc32(payload, 7)


def test_kernel_and_twin_agree_on_the_largest_frame() -> None:
    frame = new_frame("::ffff:255.255.255.255", "::ffff:128.0.0.1", src_port=65535, ip_id=65535)
    rest = bytes(range(256)) * 255 + bytes(223)
    headers = emit_headers(frame, len(rest) + ICRC_BYTES)
    assert headers[2:4] == b"\xff\xff"
    assert kernel_icrc(frame, rest) == icrc(headers, rest)


@pytest.mark.parametrize("dst", ["::ffff:10.0.0.2", "2001:db8::2"])
def test_what_routers_change_is_not_covered_and_the_rest_is(dst: str) -> None:
    src = dst[:-1] + "1"
    plain = new_frame(src, dst, src_port=1, dst_port=2)
    marked = new_frame(src, dst, src_port=1, dst_port=2, tos=3, flow_label=4)
    moved = new_frame(src, dst, src_port=3, dst_port=2)
    congested = UC_SEND_ONLY[:4] + b"\xc0" + UC_SEND_ONLY[5:]
    assert kernel_icrc(marked, congested) == kernel_icrc(plain, UC_SEND_ONLY)
    assert kernel_icrc(moved, UC_SEND_ONLY) != kernel_icrc(plain, UC_SEND_ONLY)


def test_plain_refuses_what_is_no_ip() -> None:
    with pytest.raises(WireError, match="version 5"):
        icrc(b"\x50" + bytes(27), UC_SEND_ONLY)
    with pytest.raises(WireError, match="IP header"):
        icrc(b"\x45" + bytes(18), UC_SEND_ONLY)
