"""A STORE of two blocks and its response, as values and as the bytes they must be.

The bytes are pinned: they change only together with the capsule version.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvlane.capsule import (
    DESCRIPTOR,
    KEY_RESULT,
    CommandFlags,
    CommandStatus,
    KeyStatus,
    Opcode,
    emit_command,
    emit_response,
)
from kvlane.limits import MAX_CAPSULE_BYTES

COMMAND_ID = 0x0A0B0C0D
SESSION = 0x1122334455667788
PRIORITY = 3
KEYS = np.arange(64, dtype=np.uint8).reshape(2, 32)
DESCRIPTORS = np.array(
    [
        (0x7F0000001000, 0x1234, 4096, 0x89ABCDEF, 0),
        (0x7F0000002000, 0x1234, 1000, 0x01234567, 0),
    ],
    DESCRIPTOR,
)
BOOT_ID = bytes(range(0xF0, 0x100))

STORE_HEX = (
    "4b564c43010101000d0c0b0a03000200"
    "8877665544332211b000000002000000"
    "00000000000000000000000000000000"
    "00000000000000000000000000000000"
    "000102030405060708090a0b0c0d0e0f"
    "101112131415161718191a1b1c1d1e1f"
    "202122232425262728292a2b2c2d2e2f"
    "303132333435363738393a3b3c3d3e3f"
    "00100000007f00003412000000100000"
    "efcdab890000000000200000007f0000"
    "34120000e80300006745230100000000"
)
RESPONSE_HEX = (
    "4b564c52010100000d0c0b0a02000000"
    "88776655443322116000000001000000"
    "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
    "00000000000000000000000000000000"
    "0000000000100000efcdab8907000000"
    "06000000000000000000000000000000"
)


def key_results() -> Any:
    """The first block published in generation 7, the second refused by its checksum."""
    results = np.zeros(2, KEY_RESULT)
    results["status"] = [KeyStatus.OK, KeyStatus.CHECKSUM_MISMATCH]
    results["length"] = [4096, 0]
    results["checksum"] = [0x89ABCDEF, 0]
    results["generation"] = [7, 0]
    return results


def emit_store() -> bytes:
    """The command, emitted over a buffer that was not zero before."""
    out = np.full(MAX_CAPSULE_BYTES, 0xFF, np.uint8)
    length = emit_command(
        out,
        opcode=Opcode.STORE,
        command_id=COMMAND_ID,
        session=SESSION,
        keys=KEYS,
        descriptors=DESCRIPTORS,
        flags=CommandFlags.CHECKSUM,
        priority=PRIORITY,
    )
    return out[:length].tobytes()


def emit_store_response() -> bytes:
    """The response, emitted over a buffer that was not zero before."""
    out = np.full(MAX_CAPSULE_BYTES, 0xFF, np.uint8)
    length = emit_response(
        out,
        opcode=Opcode.STORE,
        status=CommandStatus.OK,
        command_id=COMMAND_ID,
        session=SESSION,
        boot_id=BOOT_ID,
        result=1,
        results=key_results(),
    )
    return out[:length].tobytes()
