"""What a device and its port report about themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from emulator.pyverbs._device_memory import MAX_DM_BYTES
from emulator.pyverbs._device_names import (
    guid_format,
    phys_state_to_str,
    port_state_to_str,
    speed_to_str,
    str_from_flags,
    translate_device_caps,
    translate_gid_type,
    translate_link_layer,
    translate_mtu,
    translate_port_cap_flags,
    translate_port_cap_flags2,
    width_to_str,
)
from emulator.pyverbs._structure import text_lines
from emulator.pyverbs.fabric import Port, RdmaDevice
from emulator.pyverbs.libibverbs_enums import (
    IBV_LINK_LAYER_ETHERNET,
    IBV_QPF_GRH_REQUIRED,
    ibv_atomic_cap,
    ibv_device_cap_flags,
    ibv_odp_general_caps,
    ibv_odp_transport_cap_bits,
    ibv_port_cap_flags,
    ibv_port_state,
)
from emulator.pyverbs.utils import be64toh, gid_str
from emulator.roce.engine import EngineLimits
from emulator.roce.state import MAX_RD_ATOMIC, MAX_SGE
from kvlane.verbs.enums import Mtu

GID_TABLE_LENGTH = 16
NUM_COMP_VECTORS = 1
MAX_MESSAGE_BYTES = 1 << 31

_VENDOR_ID = 0x026B76
"""A locally administered OUI, so that nobody takes the device for that of a vendor."""
_VENDOR_PART_ID = 1
_MAX_WORK_REQUESTS = 16384
_MAX_CQE = (1 << 16) - 1
_ADDRESS_SPACE_BYTES = 1 << 47
_ALL_PAGE_SIZES = 0xFFFFF000
"""4 KiB and every greater power of two: memory is one flat address space."""
_MANY = 1 << 16
"""Objects that cost the device nothing, and need no limit."""
_ACK_DELAY_CODE = 15
"""4.096 us x 2^15: 134 ms, in which a busy host surely schedules the NIC's thread."""
_CLOCK_KHZ = 1_000_000
_LINK_UP = 5
_WIDTH_4X = 2
_SPEED_25_GBPS = 32

_LIMITS = EngineLimits()
_Caps = ibv_device_cap_flags
_CAPS = (
    _Caps.IBV_DEVICE_BAD_PKEY_CNTR
    | _Caps.IBV_DEVICE_BAD_QKEY_CNTR
    | _Caps.IBV_DEVICE_SYS_IMAGE_GUID
    | _Caps.IBV_DEVICE_RC_RNR_NAK_GEN
    | _Caps.IBV_DEVICE_SRQ_RESIZE
    | _Caps.IBV_DEVICE_MEM_WINDOW
    | _Caps.IBV_DEVICE_MEM_MGT_EXTENSIONS
    | _Caps.IBV_DEVICE_MEM_WINDOW_TYPE_2B
)
_DEVICE_FLUSH_GLOBAL = 1 << 38
_DEVICE_ATOMIC_WRITE = 1 << 40
"""Of ``ib_uverbs_device_cap_flags`` in the kernel's ``ib_user_verbs.h``; libibverbs has no names
for these. 1 << 39, FLUSH for persistence, is what the device does not have."""


@dataclass(frozen=True, kw_only=True)
class DeviceAttr:
    """Limits and abilities of a device. A limit of 0 stands for what it does not have."""

    node_guid: int
    sys_image_guid: int
    fw_version: str = "1.0"
    max_mr_size: int = _ADDRESS_SPACE_BYTES
    page_size_cap: int = _ALL_PAGE_SIZES
    vendor_id: int = _VENDOR_ID
    vendor_part_id: int = _VENDOR_PART_ID
    hw_ver: int = 1
    max_qp: int = _LIMITS.max_qps - 2
    max_qp_wr: int = _MAX_WORK_REQUESTS
    device_cap_flags: int = int(_CAPS)
    max_sge: int = MAX_SGE
    max_sge_rd: int = MAX_SGE
    max_cq: int = _LIMITS.max_cqs
    max_cqe: int = _MAX_CQE
    max_mr: int = _LIMITS.max_mrs - 1
    max_pd: int = _MANY
    max_qp_rd_atom: int = MAX_RD_ATOMIC
    max_ee_rd_atom: int = 0
    max_res_rd_atom: int = MAX_RD_ATOMIC * (_LIMITS.max_qps - 2)
    max_qp_init_rd_atom: int = MAX_RD_ATOMIC
    max_ee_init_rd_atom: int = 0
    atomic_caps: int = int(ibv_atomic_cap.IBV_ATOMIC_HCA)
    max_ee: int = 0
    max_rdd: int = 0
    max_mw: int = _LIMITS.max_mrs - 1
    max_raw_ipv6_qps: int = 0
    max_raw_ethy_qp: int = 0
    max_mcast_grp: int = 0
    max_mcast_qp_attach: int = 0
    max_ah: int = _MANY
    max_fmr: int = 0
    max_map_per_fmr: int = 0
    max_srq: int = _LIMITS.max_srqs
    max_srq_wr: int = _MAX_WORK_REQUESTS
    max_srq_sge: int = MAX_SGE
    max_pkeys: int = 1
    local_ca_ack_delay: int = _ACK_DELAY_CODE
    phys_port_cnt: int = 1

    @classmethod
    def of(cls, device: RdmaDevice) -> DeviceAttr:
        """The attributes of an emulated device."""
        # In network byte order, as the C structure has them.
        guid = be64toh(device.guid)
        return cls(node_guid=guid, sys_image_guid=guid)

    def __str__(self) -> str:
        lines: list[tuple[str, object]] = []
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name.endswith("guid"):
                value = guid_format(value)
            elif name == "device_cap_flags":
                value = translate_device_caps(value)
            elif name in ("max_mr_size", "page_size_cap", "vendor_id"):
                value = hex(value)
            lines.append((_label(name), value))
        return text_lines(*lines)


@dataclass(frozen=True)
class ODPCaps:
    """On-demand paging."""

    general_caps: int = 0
    rc_odp_caps: int = 0
    uc_odp_caps: int = 0
    ud_odp_caps: int = 0
    xrc_odp_caps: int = 0

    def __str__(self) -> str:
        general = {m.value: name for name, m in ibv_odp_general_caps.__members__.items()}
        by_transport = {m.value: n for n, m in ibv_odp_transport_cap_bits.__members__.items()}
        return (
            f"ODP General caps: {str_from_flags(self.general_caps, general)}\n"
            f"RC ODP caps: {str_from_flags(self.rc_odp_caps, by_transport)}\n"
            f"UD ODP caps: {str_from_flags(self.ud_odp_caps, by_transport)}\n"
            f"UC ODP caps: {str_from_flags(self.uc_odp_caps, by_transport)}\n"
            f"XRC ODP caps: {str_from_flags(self.xrc_odp_caps, by_transport)}\n"
        )


@dataclass(frozen=True)
class PCIAtomicCaps:
    """Atomics on the bus."""

    fetch_add: int = 0
    swap: int = 0
    compare_swap: int = 0


@dataclass(frozen=True)
class TSOCaps:
    """Segmentation of raw packets."""

    max_tso: int = 0
    supported_qpts: int = 0


@dataclass(frozen=True)
class RSSCaps:
    """Receive side scaling."""

    supported_qpts: int = 0
    max_rwq_indirection_tables: int = 0
    rx_hash_fields_mask: int = 0
    rx_hash_function: int = 0
    max_rwq_indirection_table_size: int = 0


@dataclass(frozen=True)
class PacketPacingCaps:
    """Rate limits of queue pairs."""

    qp_rate_limit_min: int = 0
    qp_rate_limit_max: int = 0
    supported_qpts: int = 0


@dataclass(frozen=True)
class TMCaps:
    """Tag matching."""

    max_rndv_hdr_size: int = 0
    max_num_tags: int = 0
    flags: int = 0
    max_ops: int = 0
    max_sge: int = 0


@dataclass(frozen=True)
class CQModerationCaps:
    """Moderation of completion events."""

    max_cq_count: int = 0
    max_cq_period: int = 0


@dataclass
class QueryDeviceExInput:
    """Which extended attributes are asked for; there is no choice yet."""

    comp_mask: int


@dataclass(kw_only=True)
class DeviceAttrEx:
    """Extended attributes; all that the device does not have is 0."""

    orig_attr: DeviceAttr
    comp_mask: int = 0
    odp_caps: ODPCaps = field(default_factory=ODPCaps)
    completion_timestamp_mask: int = (1 << 64) - 1
    hca_core_clock: int = _CLOCK_KHZ
    """kHz: timestamps are nanoseconds."""
    device_cap_flags_ex: int = int(_CAPS) | _DEVICE_FLUSH_GLOBAL | _DEVICE_ATOMIC_WRITE
    tso_caps: TSOCaps = field(default_factory=TSOCaps)
    pci_atomic_caps: PCIAtomicCaps = field(default_factory=PCIAtomicCaps)
    rss_caps: RSSCaps = field(default_factory=RSSCaps)
    max_wq_type_rq: int = 0
    packet_pacing_caps: PacketPacingCaps = field(default_factory=PacketPacingCaps)
    raw_packet_caps: int = 0
    tm_caps: TMCaps = field(default_factory=TMCaps)
    cq_mod_caps: CQModerationCaps = field(default_factory=CQModerationCaps)
    max_dm_size: int = MAX_DM_BYTES
    phys_port_cnt_ex: int = 1


@dataclass(frozen=True, kw_only=True)
class PortAttr:
    """State and properties of a port. What only InfiniBand has is 0."""

    active_mtu: int
    bad_pkey_cntr: int
    qkey_viol_cntr: int
    state: int = int(ibv_port_state.IBV_PORT_ACTIVE)
    max_mtu: int = int(max(Mtu))
    """What a port can be given; ``active_mtu`` is what this one has."""
    gid_tbl_len: int = GID_TABLE_LENGTH
    port_cap_flags: int = int(
        ibv_port_cap_flags.IBV_PORT_CM_SUP | ibv_port_cap_flags.IBV_PORT_IP_BASED_GIDS
    )
    max_msg_sz: int = MAX_MESSAGE_BYTES
    pkey_tbl_len: int = 1
    lid: int = 0
    sm_lid: int = 0
    lmc: int = 0
    max_vl_num: int = 1
    sm_sl: int = 0
    subnet_timeout: int = 0
    init_type_reply: int = 0
    active_width: int = _WIDTH_4X
    active_speed: int = _SPEED_25_GBPS
    phys_state: int = _LINK_UP
    link_layer: int = IBV_LINK_LAYER_ETHERNET
    flags: int = IBV_QPF_GRH_REQUIRED
    port_cap_flags2: int = 0
    active_speed_ex: int = 0

    @classmethod
    def of(cls, port: Port) -> PortAttr:
        """The attributes of an emulated port."""
        counters = port.nic.counters()
        with port.nic.engine() as engine:
            active_mtu = int(engine.port_mtu)
        return cls(
            active_mtu=active_mtu,
            bad_pkey_cntr=counters["rx_bad_pkey"] & 0xFFFFFFFF,
            qkey_viol_cntr=counters["rx_bad_qkey"] & 0xFFFFFFFF,
        )

    def __str__(self) -> str:
        return text_lines(
            ("Port state", port_state_to_str(self.state)),
            ("Max MTU", translate_mtu(self.max_mtu)),
            ("Active MTU", translate_mtu(self.active_mtu)),
            ("SM lid", self.sm_lid),
            ("Port lid", self.lid),
            ("lmc", hex(self.lmc)),
            ("Link layer", translate_link_layer(self.link_layer)),
            ("Max message size", hex(self.max_msg_sz)),
            ("Port cap flags", translate_port_cap_flags(self.port_cap_flags)),
            ("Port cap flags 2", translate_port_cap_flags2(self.port_cap_flags2)),
            ("max VL num", self.max_vl_num),
            ("Bad Pkey counter", self.bad_pkey_cntr),
            ("Qkey violations counter", self.qkey_viol_cntr),
            ("GID table len", self.gid_tbl_len),
            ("Pkey table len", self.pkey_tbl_len),
            ("SM sl", self.sm_sl),
            ("Subnet timeout", self.subnet_timeout),
            ("Init type reply", self.init_type_reply),
            ("Active width", width_to_str(self.active_width)),
            ("Active speed", speed_to_str(self.active_speed, self.active_speed_ex)),
            ("Phys state", phys_state_to_str(self.phys_state)),
            ("Flags", self.flags),
            width=24,
        )


@dataclass(frozen=True)
class GIDEntry:
    """An entry of the GID table; halves are numbers as a little-endian machine reads them."""

    gid_subnet_prefix: int = 0
    gid_interface_id: int = 0
    gid_index: int = 0
    port_num: int = 0
    gid_type: int = 0
    ndev_ifindex: int = 0

    @classmethod
    def of(cls, gid: bytes, gid_index: int, port_num: int, gid_type: int) -> GIDEntry:
        """The entry of a GID."""
        prefix, interface = (int.from_bytes(half, "little") for half in (gid[:8], gid[8:]))
        return cls(prefix, interface, gid_index, port_num, gid_type)

    def gid_str(self) -> str:
        """The GID in eight groups."""
        return gid_str(self.gid_subnet_prefix, self.gid_interface_id)

    def __str__(self) -> str:
        return text_lines(
            ("GID", self.gid_str()),
            ("GID Index", self.gid_index),
            ("Port number", self.port_num),
            ("GID type", translate_gid_type(self.gid_type)),
            ("Ndev ifindex", self.ndev_ifindex),
            width=24,
        )


def _label(name: str) -> str:
    """``max_qp_wr`` as a person writes it."""
    return name.replace("_", " ").capitalize()
