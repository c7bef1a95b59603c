"""Which device, and is its port fit for use: every refusal says what there is instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvlane.errors import ConfigError, VerbsError
from kvlane.hardware.abi import LinkLayer, PortState
from kvlane.hardware.binding import Binding
from kvlane.hardware.channel import close_with_events, event_files
from kvlane.hardware.failures import OPENING, WORKING, failing
from kvlane.hardware.gids import Gid, choose_gid
from kvlane.hardware.options import AUTO_MTU, HardwareOptions
from kvlane.verbs.enums import Mtu

_USABLE = (PortState.ACTIVE, PortState.ACTIVE_DEFER)


@dataclass(frozen=True, slots=True)
class ChosenPort:
    """An opened device and what was chosen of it."""

    context: Any
    name: str
    number: int
    gid: Gid
    mtu_bytes: int
    max_message_bytes: int


def choose_port(binding: Binding, options: HardwareOptions) -> ChosenPort:
    """Open the device that the options mean; ``ConfigError`` or ``VerbsError`` when none fits."""
    context = _open_chosen(binding, options)
    try:
        attributes = _usable_port(binding, context, options.port)
        with failing(binding, f"reading the GID table of {context.name}", WORKING):
            gid = choose_gid(binding, context, options.port, options.gid_index)
        return ChosenPort(
            context=context,
            name=context.name,
            number=options.port,
            gid=gid,
            mtu_bytes=_mtu_bytes(context.name, int(attributes.active_mtu), options.mtu_bytes),
            max_message_bytes=int(attributes.max_msg_sz),
        )
    except BaseException:
        close_with_events(context)
        raise


def device_names(binding: Binding) -> list[str]:
    """The RDMA devices there are. Without the kernel's modules pyverbs raises; then none."""
    try:
        return [device.name.decode() for device in binding.device.get_device_list()]
    except binding.error:
        return []


def _open_chosen(binding: Binding, options: HardwareOptions) -> Any:
    names = device_names(binding)
    if not names:
        raise ConfigError(
            "verbs: pyverbs finds no RDMA device; check `rdma link` and that the driver is loaded "
            "(mlx5_ib for ConnectX and BlueField; soft-RoCE is made by `rdma link add rxe0 type "
            "rxe netdev IFACE`), in a container pass /dev/infiniband, or set verbs: emulator"
        )
    if options.device:
        if options.device not in names:
            raise ConfigError(
                f"device: there is no {options.device!r}; this host has {', '.join(names)}"
            )
        return _open(binding, options.device)
    if len(names) == 1:
        return _open(binding, names[0])
    return _first_active(binding, names, options.port)


def _open(binding: Binding, name: str) -> Any:
    with failing(binding, f"opening {name}", OPENING), event_files:
        return binding.device.Context(name=name)


def _first_active(binding: Binding, names: list[str], port: int) -> Any:
    """The first device whose port could be used; the others are closed again."""
    reasons: list[str] = []
    for name in names:
        try:
            context = _open(binding, name)
        except VerbsError as error:
            reasons.append(str(error))
            continue
        try:
            _usable_port(binding, context, port)
        except (ConfigError, VerbsError) as error:
            close_with_events(context)
            reasons.append(str(error))
        else:
            return context
    raise VerbsError(f"none of {', '.join(names)} can be used: {'; '.join(reasons)}")


def _usable_port(binding: Binding, context: Any, port: int) -> Any:
    """The attributes of a port that exists, is Ethernet and is up."""
    with failing(binding, f"querying {context.name}", WORKING):
        count = int(context.query_device().phys_port_cnt)
        if port > count:
            raise ConfigError(f"port: {context.name} has ports 1 to {count}, not {port}")
        attributes = context.query_port(port)
    if attributes.link_layer == LinkLayer.INFINIBAND:
        raise ConfigError(
            f"{context.name} port {port} is InfiniBand, and kvlane speaks RoCE v2; choose another "
            f"device, or make the port Ethernet (mlxconfig set LINK_TYPE_P{port}=2, then a reset)"
        )
    if attributes.state not in _USABLE:
        raise VerbsError(
            f"{context.name} port {port} is {_state_name(attributes.state)}, not ACTIVE; bring its "
            f"network interface up (`ip link set IFACE up`) and check the cable and the peer"
        )
    return attributes


def _state_name(state: int) -> str:
    return PortState(state).name if state in list(PortState) else f"in state {state}"


def _mtu_bytes(name: str, active: int, wanted: int) -> int:
    largest = Mtu(active).nbytes
    if wanted > largest:
        raise ConfigError(
            f"mtu_bytes: {name} has an active RoCE MTU of {largest} bytes, less than {wanted}; "
            f"raise the MTU of its network interface, or set mtu_bytes to 0"
        )
    return largest if wanted == AUTO_MTU else wanted
