"""Socket filters (classic BPF): what a raw link is woken for, and what nobody wants.

The programs are those that ``tcpdump -d`` would print; each instruction is an opcode, two
jumps that count the instructions to skip, and an operand.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from kvlane.limits import ROCE_V2_UDP_PORT

# Of linux/bpf_common.h, as sums: load from a fixed place, compare with a constant, return.
_LOAD_WORD = 0x20
_LOAD_HALF = 0x28
_LOAD_BYTE = 0x30
_EQUAL = 0x15
_ANY_BIT = 0x45
_RETURN = 0x06

_PACKET_TYPE = 0xFFFFF000 + 4
"""Not in the packet: SKF_AD_OFF + SKF_AD_PKTTYPE of linux/filter.h."""
_TO_THIS_HOST = 0
"""PACKET_HOST: unicast to us; what we send ourselves is PACKET_OUTGOING."""
_SO_ATTACH_FILTER = 26
"""Of asm-generic/socket.h; the socket module lacks it."""
_WHOLE_PACKET = 0x40000
_INSTRUCTION = struct.Struct("@HBBI")
_PROGRAM = struct.Struct("@HxxxxxxP")


class Instruction(NamedTuple):
    """One instruction."""

    code: int
    if_true: int
    if_false: int
    operand: int


def _roce_instructions() -> list[Instruction]:
    """Whole UDP datagrams to port 4791 over IPv4 without options or over IPv6."""
    checks_ipv4 = [
        (_LOAD_BYTE, _EQUAL, 14, 0x45, True),
        (_LOAD_BYTE, _EQUAL, 23, 17, True),
        (_LOAD_HALF, _ANY_BIT, 20, 0x3FFF, False),
        (_LOAD_HALF, _EQUAL, 36, ROCE_V2_UDP_PORT, True),
    ]
    checks_ipv6 = [
        (_LOAD_BYTE, _EQUAL, 20, 17, True),
        (_LOAD_HALF, _EQUAL, 56, ROCE_V2_UDP_PORT, True),
    ]
    ipv4_length, ipv6_length = 2 * len(checks_ipv4), 2 * len(checks_ipv6)
    reject = 5 + ipv4_length + 1 + ipv6_length + 1
    program = [
        Instruction(_LOAD_WORD, 0, 0, _PACKET_TYPE),
        Instruction(_EQUAL, 0, reject - 2, _TO_THIS_HOST),
        Instruction(_LOAD_HALF, 0, 0, 12),
        Instruction(_EQUAL, 1, 0, 0x0800),
        Instruction(_EQUAL, ipv4_length + 1, reject - 5, 0x86DD),
    ]
    for checks in (checks_ipv4, checks_ipv6):
        for load, test, at, operand, wanted in checks:
            program.append(Instruction(load, 0, 0, at))
            away = reject - len(program) - 1
            jumps = (0, away) if wanted else (away, 0)
            program.append(Instruction(test, *jumps, operand))
        if checks is checks_ipv4:
            program.append(Instruction(_RETURN, 0, 0, _WHOLE_PACKET))
    program.append(Instruction(_RETURN, 0, 0, _WHOLE_PACKET))
    program.append(Instruction(_RETURN, 0, 0, 0))
    return program


ROCE_ONLY = tuple(_roce_instructions())
NOTHING = (Instruction(_RETURN, 0, 0, 0),)


def attach_filter(any_socket: socket.socket, program: Sequence[Instruction]) -> None:
    """Let a socket receive only what the program accepts."""
    code = b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    option = _PROGRAM.pack(len(program), ctypes.addressof(buffer))
    any_socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)
