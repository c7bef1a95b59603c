"""GIDs, routes and address handles."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from emulator.pyverbs._structure import text_lines, u8, u16, u32
from emulator.pyverbs.base import PyverbsCM, PyverbsObject
from emulator.pyverbs.fabric import PORT_NUM, Port
from emulator.pyverbs.libibverbs_enums import ibv_wc_flags
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from emulator.pyverbs.utils import gid_bytes, gid_text
from emulator.roce.attributes import AddressHandle

if TYPE_CHECKING:
    from emulator.pyverbs.pd import PD

_NO_GID = bytes(16)
_GRH_BYTES = 40
_DEFAULT_HOP_LIMIT = 64
_IPV4_MAPPED_PREFIX = bytes(10) + b"\xff\xff"


class GID(PyverbsObject):
    """A GID; programs write it in eight groups of four digits."""

    def __init__(self, val: str | None = None) -> None:
        super().__init__()
        self.raw = _NO_GID if val is None else gid_bytes(val)
        """Its 16 bytes."""

    @classmethod
    def from_bytes(cls, raw: bytes) -> GID:
        """The GID of 16 bytes."""
        gid = cls()
        gid.raw = raw
        return gid

    @property
    def gid(self) -> str:
        """The GID in eight groups."""
        return gid_text(self.raw)

    @gid.setter
    def gid(self, val: str) -> None:
        self.raw = gid_bytes(val)

    def __str__(self) -> str:
        return self.gid


class _GidField:
    """An attribute that programs see as text and the device as bytes."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"{name}_raw"

    def __get__(self, instance: Any, owner: type) -> str:
        return gid_text(getattr(instance, self._slot))

    def __set__(self, instance: Any, value: str) -> None:
        setattr(instance, self._slot, gid_bytes(value))


class GRH(PyverbsObject):
    """A global routing header, as a program describes one."""

    dgid = _GidField()
    sgid = _GidField()
    version_tclass_flow = u32()
    paylen = u16()
    next_hdr = u8()
    hop_limit = u8()

    def __init__(
        self,
        sgid: GID | None = None,
        dgid: GID | None = None,
        version_tclass_flow: int = 0,
        paylen: int = 0,
        next_hdr: int = 0,
        hop_limit: int = 1,
    ) -> None:
        super().__init__()
        self.sgid_raw = sgid.raw if sgid is not None else _NO_GID
        self.dgid_raw = dgid.raw if dgid is not None else _NO_GID
        self.version_tclass_flow = version_tclass_flow
        self.paylen = paylen
        self.next_hdr = next_hdr
        self.hop_limit = hop_limit

    def __str__(self) -> str:
        return text_lines(
            ("DGID", self.dgid),
            ("SGID", self.sgid),
            ("version tclass flow", self.version_tclass_flow),
            ("paylen", self.paylen),
            ("next header", self.next_hdr),
            ("hop limit", self.hop_limit),
        )


class GlobalRoute(PyverbsObject):
    """Where packets go and how, for the global routing header of an address handle."""

    dgid = _GidField()
    flow_label = u32()
    sgid_index = u8()
    hop_limit = u8()
    traffic_class = u8()

    def __init__(
        self,
        dgid: GID | None = None,
        flow_label: int = 0,
        sgid_index: int = 0,
        hop_limit: int = 1,
        traffic_class: int = 0,
    ) -> None:
        super().__init__()
        self.dgid_raw = dgid.raw if dgid is not None else _NO_GID
        self.flow_label = flow_label
        self.sgid_index = sgid_index
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class

    def __str__(self) -> str:
        return text_lines(
            ("DGID", self.dgid),
            ("flow label", self.flow_label),
            ("sgid index", self.sgid_index),
            ("hop limit", self.hop_limit),
            ("traffic class", self.traffic_class),
        )


class _RouteField:
    """A part of the route: ``None`` as long as the address is not global."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: AHAttr, owner: type) -> Any:
        return getattr(instance.route, self._name) if instance.is_global else None

    def __set__(self, instance: AHAttr, value: Any) -> None:
        setattr(instance.route, self._name, value)


class AHAttr(PyverbsObject):
    """Attributes of an address handle, or of the path of a connected queue pair."""

    port_num = u8()
    sl = u8()
    src_path_bits = u8()
    dlid = u16()
    static_rate = u8()
    is_global = u8()
    dgid = _RouteField()
    flow_label = _RouteField()
    sgid_index = _RouteField()
    hop_limit = _RouteField()
    traffic_class = _RouteField()

    def __init__(
        self,
        dlid: int = 0,
        sl: int = 0,
        src_path_bits: int = 0,
        static_rate: int = 0,
        is_global: int = 0,
        port_num: int = 1,
        gr: GlobalRoute | None = None,
    ) -> None:
        super().__init__()
        self.port_num = port_num
        self.sl = sl
        self.src_path_bits = src_path_bits
        self.dlid = dlid
        self.static_rate = static_rate
        self.is_global = is_global
        self.route = GlobalRoute()
        if is_global:
            if gr is None:
                raise PyverbsUserError("Global AH Attr is created but gr parameter is None")
            self.route.dgid_raw = gr.dgid_raw
            self.route.flow_label = gr.flow_label
            self.route.sgid_index = gr.sgid_index
            self.route.hop_limit = gr.hop_limit
            self.route.traffic_class = gr.traffic_class

    @classmethod
    def of_address_handle(cls, path: AddressHandle) -> AHAttr:
        """The attributes of a path of the engine."""
        return cls(
            is_global=1,
            port_num=path.port_num,
            sl=path.sl,
            static_rate=path.static_rate,
            gr=GlobalRoute(
                GID.from_bytes(path.dgid),
                path.flow_label,
                path.sgid_index,
                path.hop_limit,
                path.traffic_class,
            ),
        )

    def address_handle(self, port: Port, failed: str = "Invalid address") -> AddressHandle:
        """The path as the engine takes it; ``EINVAL``, with a reason, when there can be none."""
        reason = ""
        if not self.is_global:
            reason = "RoCE routes by GID, so the address must be global"
        elif self.port_num != PORT_NUM:
            reason = f"the device has no port {self.port_num}"
        elif self.route.sgid_index >= len(port.gids):
            reason = f"there is no GID at index {self.route.sgid_index}"
        elif _is_ipv4(port.gids[self.route.sgid_index]) != _is_ipv4(self.route.dgid_raw):
            reason = "IPv4 and IPv6 GIDs cannot reach each other; choose another sgid_index"
        if reason:
            raise PyverbsRDMAError(f"{failed}: {reason}", errno.EINVAL)
        return AddressHandle(
            dgid=self.route.dgid_raw,
            udp_port=port.udp_port_of(self.route.dgid_raw),
            sgid_index=self.route.sgid_index,
            flow_label=self.route.flow_label,
            hop_limit=self.route.hop_limit,
            traffic_class=self.route.traffic_class,
            sl=self.sl,
            port_num=self.port_num,
            static_rate=self.static_rate,
        )

    def __str__(self) -> str:
        lines: list[tuple[str, object]] = [
            ("port num", self.port_num),
            ("sl", self.sl),
            ("source path bits", self.src_path_bits),
            ("dlid", self.dlid),
            ("static rate", self.static_rate),
            ("is global", self.is_global),
        ]
        if self.is_global:
            lines += [
                ("dgid", self.dgid),
                ("flow label", self.flow_label),
                ("sgid index", self.sgid_index),
                ("hop limit", self.hop_limit),
                ("traffic_class", self.traffic_class),
            ]
        return text_lines(*lines, indent=2)


class AH(PyverbsCM):
    """A path to a port, for datagrams; ``path`` is what the engine knows it by."""

    _kind: ClassVar[str] = "ah"

    def __init__(
        self,
        pd: PD,
        *,
        attr: AHAttr | None = None,
        wc: Any = None,
        grh: int = 0,
        port_num: int = PORT_NUM,
    ) -> None:
        """Of attributes, or of a completion and the address of the header it came with."""
        super().__init__()
        failed = "Failed to create AH"
        if attr is None:
            if not wc.wc_flags & ibv_wc_flags.IBV_WC_GRH or not grh:
                raise PyverbsRDMAError(failed, errno.EINVAL)
            header = ctypes.string_at(grh, _GRH_BYTES)
            attr = _reply_attributes(header, port_num, pd.ctx.port.gids)
        self.path = attr.address_handle(pd.ctx.port, failed)
        self.pd: PD | None = pd
        pd.add_ref(self)

    def close(self) -> None:
        """Forget the path; requests that have been posted keep it."""
        self.pd = None


def _is_ipv4(gid: bytes) -> bool:
    return gid.startswith(_IPV4_MAPPED_PREFIX)


def _reply_attributes(header: bytes, port_num: int, gids: Sequence[bytes]) -> AHAttr:
    """The way back to the sender of a datagram, from the network header that was received.

    It begins at the GID of ``gids`` that the datagram was sent to. An IPv4 header fills the
    last 20 bytes of its 40 (``rdma_network_hdr`` of Linux).
    """
    if header[0] >> 4 == 6:
        first_word = int.from_bytes(header[:4], "big")
        sgid, dgid = header[8:24], header[24:40]
        traffic_class, flow_label = first_word >> 20 & 0xFF, first_word & 0xFFFFF
    else:
        sgid, dgid = (_IPV4_MAPPED_PREFIX + header[at : at + 4] for at in (32, 36))
        traffic_class, flow_label = header[21], 0
    route = GlobalRoute(
        GID.from_bytes(sgid),
        flow_label=flow_label,
        sgid_index=gids.index(dgid) if dgid in gids else 0,
        hop_limit=_DEFAULT_HOP_LIMIT,
        traffic_class=traffic_class,
    )
    return AHAttr(is_global=1, port_num=port_num, gr=route)
