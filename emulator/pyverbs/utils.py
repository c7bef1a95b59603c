"""Text forms of numbers, as pyverbs offers them."""

from __future__ import annotations

from collections.abc import Mapping

from emulator.pyverbs.libibverbs_enums import ibv_rereg_mr_err_code
from emulator.pyverbs.pyverbs_error import PyverbsUserError

_GID_GROUPS = 8
_GID_GROUP_DIGITS = 4


def be64toh(num: int) -> int:
    """A 64-bit number whose bytes were read in the wrong order."""
    return int.from_bytes(num.to_bytes(8, "big"), "little")


def gid_text(gid: bytes) -> str:
    """16 bytes as eight groups of four digits, none left out."""
    digits = gid.hex()
    return ":".join(digits[at : at + _GID_GROUP_DIGITS] for at in range(0, 32, _GID_GROUP_DIGITS))


def gid_bytes(text: str) -> bytes:
    """The 16 bytes of a GID in eight groups; ``PyverbsUserError`` for any other form."""
    return bytes(int(byte, 16) for byte in gid_str_to_array(text))


def gid_str(subnet_prefix: int, interface_id: int) -> str:
    """A GID from its halves, which are numbers as a little-endian machine reads them."""
    return gid_text(subnet_prefix.to_bytes(8, "little") + interface_id.to_bytes(8, "little"))


def gid_str_to_array(val: str) -> list[str]:
    """The 16 bytes of a GID in eight groups, two digits each."""
    groups = val.split(":")
    if len(groups) != _GID_GROUPS or any(len(group) != _GID_GROUP_DIGITS for group in groups):
        raise PyverbsUserError(f"Invalid GID value ({val})")
    digits = "".join(groups)
    try:
        int(digits, 16)
    except ValueError:
        raise PyverbsUserError(f"Invalid GID value ({val})") from None
    return [digits[at : at + 2] for at in range(0, len(digits), 2)]


def name_of(names: Mapping[int, str], number: int) -> str:
    """The name of a number, or that it has none."""
    return names.get(number, f"Unknown ({int(number)})")


def qp_type_to_str(qp_type: int) -> str:
    """Name of an ``ibv_qp_type``."""
    return name_of(_QP_TYPES, qp_type)


def qp_state_to_str(qp_state: int) -> str:
    """Name of an ``ibv_qp_state``."""
    return name_of(_QP_STATES, qp_state)


def mtu_to_str(mtu: int) -> int:
    """Bytes of an encoded MTU, 0 for none; no text, whatever the name says."""
    return 128 << mtu if 1 <= mtu <= 5 else 0


def access_flags_to_str(flags: int) -> str:
    """Names of ``ibv_access_flags``, each with a blank behind it."""
    return "".join(f"{name} " for bit, name in _ACCESS_FLAGS.items() if flags & bit)


def mig_state_to_str(mig: int) -> str:
    """Name of an ``ibv_mig_state``."""
    return name_of(_MIG_STATES, mig)


def rereg_error_to_str(error: int) -> str:
    """Name of an ``ibv_rereg_mr_err_code``."""
    try:
        return ibv_rereg_mr_err_code(error).name
    except ValueError:
        return f"Unknown error ({error})"


_QP_TYPES = {
    2: "RC",
    3: "UC",
    4: "UD",
    8: "Raw Packet",
    9: "XRCD_SEND",
    10: "XRCD_RECV",
    0xFF: "Driver QP",
}
_QP_STATES = {
    0: "Reset",
    1: "Init",
    2: "RTR",
    3: "RTS",
    4: "SQD",
    5: "SQE",
    6: "Error",
    7: "Unknown",
}
_ACCESS_FLAGS = {
    1: "Local write",
    2: "Remote write",
    4: "Remote read",
    8: "Remote atomic",
    16: "MW bind",
    32: "Zero based",
    64: "On demand",
}
_MIG_STATES = {0: "Migrated", 1: "Re-arm", 2: "Armed"}
