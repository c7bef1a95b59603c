"""Numbers of libibverbs under the names that pyverbs gives them.

As Cython exports C enums, every member is an attribute of this module besides. Enums with
negative values are no flags; all others may be combined, whether that makes sense or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.pyverbs._enums_device import (
    ibv_access_flags,
    ibv_atomic_cap,
    ibv_device_cap_flags,
    ibv_event_type,
    ibv_fork_status,
    ibv_gid_type,
    ibv_gid_type_sysfs,
    ibv_mtu,
    ibv_mw_type,
    ibv_node_type,
    ibv_odp_general_caps,
    ibv_odp_transport_cap_bits,
    ibv_parent_domain_init_attr_mask,
    ibv_port_cap_flags,
    ibv_port_cap_flags2,
    ibv_port_state,
    ibv_raw_packet_caps,
    ibv_rereg_mr_err_code,
    ibv_rereg_mr_flags,
    ibv_transport_type,
    ibv_values_mask,
    ibv_xrcd_init_attr_mask,
)
from emulator.pyverbs._enums_queues import (
    ibv_cq_init_attr_mask,
    ibv_create_cq_attr_flags,
    ibv_create_cq_wc_flags,
    ibv_mig_state,
    ibv_ops_flags,
    ibv_ops_wr_opcode,
    ibv_placement_type,
    ibv_qp_attr_mask,
    ibv_qp_create_flags,
    ibv_qp_create_send_ops_flags,
    ibv_qp_init_attr_mask,
    ibv_qp_state,
    ibv_qp_type,
    ibv_query_qp_data_in_order_caps,
    ibv_query_qp_data_in_order_flags,
    ibv_selectivity_level,
    ibv_send_flags,
    ibv_srq_attr_mask,
    ibv_srq_init_attr_mask,
    ibv_srq_type,
    ibv_tm_cap_flags,
    ibv_tmh_op,
    ibv_wc_flags,
    ibv_wc_opcode,
    ibv_wc_status,
    ibv_wr_opcode,
)
from emulator.pyverbs._enums_steering import (
    ibv_counter_description,
    ibv_flow_attr_type,
    ibv_flow_flags,
    ibv_flow_spec_type,
    ibv_read_counters_flags,
    ibv_rx_hash_fields,
    ibv_rx_hash_function_flags,
    ibv_wq_attr_mask,
    ibv_wq_flags,
    ibv_wq_init_attr_mask,
    ibv_wq_state,
    ibv_wq_type,
)

__all__ = [
    "ibv_access_flags",
    "ibv_atomic_cap",
    "ibv_counter_description",
    "ibv_cq_init_attr_mask",
    "ibv_create_cq_attr_flags",
    "ibv_create_cq_wc_flags",
    "ibv_device_cap_flags",
    "ibv_event_type",
    "ibv_flow_attr_type",
    "ibv_flow_flags",
    "ibv_flow_spec_type",
    "ibv_fork_status",
    "ibv_gid_type",
    "ibv_gid_type_sysfs",
    "ibv_mig_state",
    "ibv_mtu",
    "ibv_mw_type",
    "ibv_node_type",
    "ibv_odp_general_caps",
    "ibv_odp_transport_cap_bits",
    "ibv_ops_flags",
    "ibv_ops_wr_opcode",
    "ibv_parent_domain_init_attr_mask",
    "ibv_placement_type",
    "ibv_port_cap_flags",
    "ibv_port_cap_flags2",
    "ibv_port_state",
    "ibv_qp_attr_mask",
    "ibv_qp_create_flags",
    "ibv_qp_create_send_ops_flags",
    "ibv_qp_init_attr_mask",
    "ibv_qp_state",
    "ibv_qp_type",
    "ibv_query_qp_data_in_order_caps",
    "ibv_query_qp_data_in_order_flags",
    "ibv_raw_packet_caps",
    "ibv_read_counters_flags",
    "ibv_rereg_mr_err_code",
    "ibv_rereg_mr_flags",
    "ibv_rx_hash_fields",
    "ibv_rx_hash_function_flags",
    "ibv_selectivity_level",
    "ibv_send_flags",
    "ibv_srq_attr_mask",
    "ibv_srq_init_attr_mask",
    "ibv_srq_type",
    "ibv_tm_cap_flags",
    "ibv_tmh_op",
    "ibv_transport_type",
    "ibv_values_mask",
    "ibv_wc_flags",
    "ibv_wc_opcode",
    "ibv_wc_status",
    "ibv_wq_attr_mask",
    "ibv_wq_flags",
    "ibv_wq_init_attr_mask",
    "ibv_wq_state",
    "ibv_wq_type",
    "ibv_wr_opcode",
    "ibv_xrcd_init_attr_mask",
]

IBV_LINK_LAYER_UNSPECIFIED = 0
IBV_LINK_LAYER_INFINIBAND = 1
IBV_LINK_LAYER_ETHERNET = 2
IBV_QPF_GRH_REQUIRED = 1
IBV_WC_STANDARD_FLAGS = 0x7F
_IBV_DEVICE_RAW_SCATTER_FCS = 1 << 34
_IBV_DEVICE_PCI_WRITE_END_PADDING = 1 << 36
_IBV_ALLOCATOR_USE_DEFAULT = (1 << 64) - 1
"""What an allocator of a parent domain returns to leave the allocation to the library."""
_IBV_ADVISE_MR_ADVICE_PREFETCH = 0
_IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1
_IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2
_IBV_ADVISE_MR_FLAG_FLUSH = 1

for _name in __all__:
    globals().update(globals()[_name].__members__)


if TYPE_CHECKING:

    def __getattr__(name: str) -> int:
        """Members of the enums, for type checkers, which do not see them put here."""
