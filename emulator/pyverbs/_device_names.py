"""Names of what devices, ports and GIDs report, as programs print them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag

from emulator.pyverbs.libibverbs_enums import (
    ibv_device_cap_flags,
    ibv_event_type,
    ibv_port_cap_flags,
    ibv_port_cap_flags2,
)
from emulator.pyverbs.utils import be64toh

_TRANSPORTS = {0: "IB", 1: "IWARP", 2: "USNIC", 3: "USNIC UDP"}
_NODES = {1: "CA", 2: "Switch", 3: "Router", 4: "RNIC", 5: "USNIC", 6: "USNIC UDP"}
_GID_TYPES = {0: "IB", 1: "RoCEv1", 2: "RoCEv2"}
_LINK_LAYERS = {0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}
_PORT_STATES = {0: "NOP", 1: "Down", 2: "Init", 3: "Armed", 4: "Active", 5: "Defer"}
_MTU_BYTES = {1: "256", 2: "512", 3: "1024", 4: "2048", 5: "4096"}
_WIDTHS = {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
_PHYSICAL_STATES = {
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "Port configuration training",
    5: "Link up",
    6: "Link error recovery",
    7: "Phy test",
}
_SPEEDS = {
    0: "0.0 Gbps",
    1: "2.5 Gbps",
    2: "5.0 Gbps",
    4: "5.0 Gbps",
    8: "10.0 Gbps",
    16: "14.0 Gbps",
    32: "25.0 Gbps",
    64: "50.0 Gbps",
    128: "100.0 Gbps",
    256: "200.0 Gbps",
}

_EVENTS = {member.value: name for name, member in ibv_event_type.__members__.items()}


def _with_number(names: Mapping[int, str], number: int, otherwise: str) -> str:
    return f"{names[number]} ({number})" if number in names else otherwise


def translate_gid_type(gid_type: int) -> str:
    """Name of an ``ibv_gid_type``."""
    return _GID_TYPES.get(gid_type, f"Unknown gid_type ({gid_type})")


def translate_transport_type(transport_type: int) -> str:
    """Name of an ``ibv_transport_type``."""
    return _TRANSPORTS.get(transport_type, "Unknown")


def translate_node_type(node_type: int) -> str:
    """Name of an ``ibv_node_type``."""
    return _NODES.get(node_type, "Unknown")


def translate_event_type(event_type: int) -> str:
    """Name of an ``ibv_event_type``."""
    return _EVENTS.get(event_type, f"Unknown event_type ({event_type})")


def guid_format(num: int) -> str:
    """A GUID, as an attribute gives it, in four groups of digits."""
    digits = f"{be64toh(num):016x}"
    return ":".join(digits[at : at + 4] for at in range(0, len(digits), 4))


def guid_to_hex(node_guid: int) -> str:
    """The digits of a GUID."""
    return f"{node_guid:x}"


def port_state_to_str(port_state: int) -> str:
    """Name of an ``ibv_port_state``."""
    return _with_number(_PORT_STATES, port_state, f"Invalid state ({port_state})")


def translate_mtu(mtu: int) -> str:
    """Bytes of an encoded MTU."""
    return _with_number(_MTU_BYTES, mtu, f"Invalid MTU ({mtu})")


def translate_link_layer(ll: int) -> str:
    """Name of a link layer."""
    return _LINK_LAYERS.get(ll, f"Invalid link layer ({ll})")


def phys_state_to_str(phys: int) -> str:
    """Name of a physical port state."""
    return _with_number(_PHYSICAL_STATES, phys, "Invalid physical state")


def width_to_str(width: int) -> str:
    """Lanes of an encoded link width."""
    return _with_number(_WIDTHS, width, "Invalid width")


def speed_to_str(active_speed: int, active_speed_ex: int) -> str:
    """Rate of a lane; the extended code rules when there is one."""
    return _with_number(_SPEEDS, active_speed_ex or active_speed, "Invalid speed")


def translate_port_cap_flags(flags: int) -> str:
    """Names of ``ibv_port_cap_flags``."""
    return _flag_names(ibv_port_cap_flags, flags)


def translate_port_cap_flags2(flags: int) -> str:
    """Names of ``ibv_port_cap_flags2``."""
    return _flag_names(ibv_port_cap_flags2, flags)


def translate_device_caps(flags: int) -> str:
    """Names of ``ibv_device_cap_flags``."""
    return _flag_names(ibv_device_cap_flags, flags)


def str_from_flags(flags: int, dictionary: Mapping[int, str]) -> str:
    """Names of the bits that are set, each on a line of its own."""
    names = [name for bit, name in dictionary.items() if flags & bit]
    return "".join(f"\n  {name}" for name in names) + "\n  "


def _flag_names(flag_class: type[IntFlag], flags: int) -> str:
    names = {member.value: name for name, member in flag_class.__members__.items()}
    return str_from_flags(flags, names)
