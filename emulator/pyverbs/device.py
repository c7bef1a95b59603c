"""Devices, and contexts: devices that a program has opened."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from typing import Any

from emulator.pyverbs import fabric
from emulator.pyverbs._device_attributes import (
    GID_TABLE_LENGTH,
    NUM_COMP_VECTORS,
    CQModerationCaps,
    DeviceAttr,
    DeviceAttrEx,
    GIDEntry,
    ODPCaps,
    PacketPacingCaps,
    PCIAtomicCaps,
    PortAttr,
    QueryDeviceExInput,
    RSSCaps,
    TMCaps,
    TSOCaps,
)
from emulator.pyverbs._device_memory import DM, AllocDmAttr
from emulator.pyverbs._device_names import (
    guid_format,
    guid_to_hex,
    phys_state_to_str,
    port_state_to_str,
    speed_to_str,
    str_from_flags,
    translate_device_caps,
    translate_event_type,
    translate_gid_type,
    translate_link_layer,
    translate_mtu,
    translate_node_type,
    translate_port_cap_flags,
    translate_port_cap_flags2,
    translate_transport_type,
    width_to_str,
)
from emulator.pyverbs._structure import text_lines
from emulator.pyverbs.addr import GID
from emulator.pyverbs.base import (
    Dependents,
    PyverbsCM,
    PyverbsObject,
    not_supported,
    verbs_errors,
)
from emulator.pyverbs.fabric import PORT_NUM, EventQueue, Port
from emulator.pyverbs.libibverbs_enums import (
    ibv_gid_type,
    ibv_gid_type_sysfs,
    ibv_node_type,
    ibv_transport_type,
    ibv_values_mask,
)
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from emulator.roce import engine

__all__ = [
    "DM",
    "AllocDmAttr",
    "AsyncEvent",
    "CQModerationCaps",
    "Context",
    "Device",
    "DeviceAttr",
    "DeviceAttrEx",
    "FdArr",
    "GIDEntry",
    "ODPCaps",
    "PCIAtomicCaps",
    "PacketPacingCaps",
    "PortAttr",
    "QueryDeviceExInput",
    "RSSCaps",
    "TMCaps",
    "TSOCaps",
    "get_device_list",
    "guid_format",
    "guid_to_hex",
    "phys_state_to_str",
    "port_state_to_str",
    "rdma_get_devices",
    "speed_to_str",
    "str_from_flags",
    "translate_device_caps",
    "translate_event_type",
    "translate_gid_type",
    "translate_link_layer",
    "translate_mtu",
    "translate_node_type",
    "translate_port_cap_flags",
    "translate_port_cap_flags2",
    "translate_transport_type",
    "width_to_str",
]

_NO_GID = bytes(16)


class Device(PyverbsObject):
    """A device as it is listed."""

    def __init__(
        self, name: bytes, guid: int, node_type: int, transport_type: int, index: int
    ) -> None:
        super().__init__()
        self.name = name
        self.guid = guid
        self.node_type = node_type
        self.transport_type = transport_type
        self.index = index

    def __str__(self) -> str:
        return (
            f"Device {self.name.decode()}, node type {translate_node_type(self.node_type)}, "
            f"transport type {translate_transport_type(self.transport_type)}, "
            f"guid {guid_to_hex(self.guid)}, index {self.index}"
        )


def get_device_list() -> list[Device]:
    """The emulated devices."""
    return [
        Device(
            device.name.encode(),
            device.guid,
            ibv_node_type.IBV_NODE_CA,
            ibv_transport_type.IBV_TRANSPORT_IB,
            device.index,
        )
        for device in fabric.devices()
    ]


def rdma_get_devices() -> list[Device]:
    """The devices that connection management can use: all."""
    return get_device_list()


class AsyncEvent(PyverbsObject):
    """Something that happened without being waited for."""

    def __init__(self, event_type: int = 0) -> None:
        super().__init__()
        self.event_type = event_type

    def ack(self) -> None:
        """Nothing waits for the acknowledgement here."""

    def __str__(self) -> str:
        return text_lines(("Event Type", translate_event_type(self.event_type)), width=24)


class Context(PyverbsCM):
    """An open device.

    ``port`` is its port in this process, ``limits`` what it can do, and ``async_events`` the
    queue that the objects of this context tell of asynchronous events by.
    """

    port: Port
    limits: DeviceAttr
    _open: bool = False

    def __init__(
        self, *, name: str | None = None, attr: Any = None, cmid: Any = None, cmd_fd: Any = None
    ) -> None:
        """Open a device by name, or share one that a CM ID or another context has opened."""
        super().__init__()
        if cmid is not None:
            port = cmid.port
            cmid.ctx = self
        elif cmd_fd is not None:
            port = _imported_port(cmd_fd)
        elif name is None:
            raise PyverbsUserError("Device name must be provided")
        else:
            if attr is not None:
                not_supported("Opening a device by a provider's attributes")
            with verbs_errors(f"Failed to open device {name}"):
                port = _device_named(name).open()
        self.port = port
        self.name = port.device.name
        self.limits = DeviceAttr.of(port.device)
        self.async_events: EventQueue[engine.AsyncEvent] = EventQueue()
        self._dependents = Dependents(
            "qp", "rwq_ind_table", "wq", "comp_channel", "cq", "dm", "parent_domain", "pd", "xrcd"
        )
        self._open = True

    def add_ref(self, obj: PyverbsCM) -> None:
        """Close an object before this."""
        self._dependents.add(obj)

    def close(self) -> None:
        """Close everything that was made of it; the device itself stays open for others."""
        if self._open:
            self._dependents.close()
            self._open = False
            self.async_events.close()

    @property
    def num_comp_vectors(self) -> int:
        """Completion vectors to choose from."""
        return NUM_COMP_VECTORS

    @property
    def cmd_fd(self) -> int:
        """A descriptor by which another context, or a duplicate of it, can share the device."""
        return self.port.cmd_fd

    def query_device(self) -> DeviceAttr:
        """Limits and abilities of the device."""
        self._require_open("Failed to query device")
        return self.limits

    def query_device_ex(
        self,
        ex_input: QueryDeviceExInput | None = None,  # noqa: ARG002 (holds no choice yet)
    ) -> DeviceAttrEx:
        """The same with extended attributes."""
        return DeviceAttrEx(orig_attr=self.query_device())

    def query_port(self, port_num: int) -> PortAttr:
        """State and properties of a port."""
        self._require_port(f"Failed to query port {port_num}", port_num)
        return PortAttr.of(self.port)

    def query_pkey(self, port_num: int, index: int) -> int:
        """A partition key."""
        failed = f"Failed to query pkey {index} of port {port_num}"
        self._require_port(failed, port_num)
        if not 0 <= index < len(self.port.pkeys):
            raise PyverbsRDMAError(failed)
        return self.port.pkeys[index]

    def get_pkey_index(self, port_num: int, pkey: int) -> int:
        """Where a partition key stands in the table."""
        failed = f"Failed to get pkey index of pkey = {pkey} of port {port_num}"
        self._require_port(failed, port_num)
        if pkey not in self.port.pkeys:
            raise PyverbsRDMAError(failed)
        return self.port.pkeys.index(pkey)

    def query_gid(self, port_num: int, index: int) -> GID:
        """A GID; all zero where the table has none."""
        failed = f"Failed to query gid {index} of port {port_num}"
        self._require_port(failed, port_num)
        if not 0 <= index < GID_TABLE_LENGTH:
            raise PyverbsRDMAError(failed)
        return GID.from_bytes(self._gid_at(index))

    def query_gid_type(self, port_num: int, index: int) -> ibv_gid_type_sysfs:
        """What the GID at an index stands for, as the kernel's files tell it."""
        failed = f"Failed to query gid type of port {port_num} and gid index {index}"
        self._require_port(failed, port_num)
        if not 0 <= index < GID_TABLE_LENGTH:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        if self._gid_at(index) == _NO_GID:
            return ibv_gid_type_sysfs.IBV_GID_TYPE_SYSFS_IB_ROCE_V1
        return ibv_gid_type_sysfs.IBV_GID_TYPE_SYSFS_ROCE_V2

    def query_gid_table(self, max_entries: int, flags: int = 0) -> list[GIDEntry]:
        """All GIDs; ``max_entries`` that are too few are refused with ``-EINVAL``."""
        failed = "Failed to query gid tables of the device"
        self._require_open(failed)
        if flags or max_entries < len(self.port.gids):
            raise PyverbsRDMAError(failed, -errno.EINVAL)
        return [self._gid_entry(index) for index in range(len(self.port.gids))]

    def query_gid_ex(self, port_num: int, gid_index: int, flags: int = 0) -> GIDEntry:
        """The GID at an index; ``ENODATA`` where the table has none."""
        failed = f"Failed to query gid table of port {port_num} in index {gid_index}"
        self._require_port(failed, port_num)
        if flags or not 0 <= gid_index < GID_TABLE_LENGTH:
            raise PyverbsRDMAError(failed, errno.EINVAL)
        if gid_index >= len(self.port.gids):
            raise PyverbsRDMAError(failed, errno.ENODATA)
        return self._gid_entry(gid_index)

    def query_rt_values_ex(
        self, comp_mask: int = ibv_values_mask.IBV_VALUES_MASK_RAW_CLOCK
    ) -> tuple[int, int]:
        """Seconds and nanoseconds of the device's clock."""
        self._require_open("Failed to query real time values")
        if comp_mask != ibv_values_mask.IBV_VALUES_MASK_RAW_CLOCK:
            raise PyverbsRDMAError("Failed to query real time values with requested comp_mask")
        return divmod(time.monotonic_ns(), 1_000_000_000)

    def get_async_event(self) -> AsyncEvent:
        """The next asynchronous event of this context's objects; waits for it."""
        failed = "Failed to get async event"
        self._require_open(failed)
        try:
            event = self.async_events.get()
        except BlockingIOError as error:
            raise PyverbsRDMAError(failed, errno.EAGAIN) from error
        return AsyncEvent(event.event)

    def _gid_at(self, index: int) -> bytes:
        return self.port.gids[index] if index < len(self.port.gids) else _NO_GID

    def _gid_entry(self, index: int) -> GIDEntry:
        gid_type = ibv_gid_type.IBV_GID_TYPE_ROCE_V2
        return GIDEntry.of(self.port.gids[index], index, PORT_NUM, gid_type)

    def _require_port(self, failed: str, port_num: int) -> None:
        self._require_open(failed)
        if port_num != PORT_NUM:
            raise PyverbsRDMAError(failed, errno.EINVAL)

    def _require_open(self, failed: str) -> None:
        if not self._open:
            raise PyverbsRDMAError(f"{failed}: the context is closed", errno.EBADF)


class FdArr(PyverbsObject):
    """A list of descriptors."""

    def __init__(self, arr: Sequence[int] = (), count: int = 0) -> None:
        super().__init__()
        self.arr = [int(fd) for fd in arr[:count]]
        self.count = count

    def __str__(self) -> str:
        return text_lines(("Number of fd in arr", self.count), ("FDs in arr", self.arr), width=20)


def _device_named(name: str) -> fabric.RdmaDevice:
    for device in fabric.devices():
        if device.name == name:
            return device
    raise PyverbsRDMAError(f"Failed to find device {name}")


def _imported_port(cmd_fd: int) -> Port:
    port = fabric.port_of_cmd_fd(cmd_fd)
    if port is None:
        raise PyverbsRDMAError("Failed to import device", errno.EINVAL)
    return port
