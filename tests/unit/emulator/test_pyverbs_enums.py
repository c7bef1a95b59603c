"""Enums as Cython exports them: classes, and all members in the module besides."""

from __future__ import annotations

from enum import IntFlag

import pytest

from emulator.pyverbs import libibverbs_enums, librdmacm_enums
from emulator.roce.attributes import QpMask
from kvlane.verbs import enums as engine_enums

ENUMS = [getattr(libibverbs_enums, name) for name in libibverbs_enums.__all__]

# The engine's enum, that of the interface, and what names begin with there.
TWINS = [
    (engine_enums.QpType, libibverbs_enums.ibv_qp_type, "IBV_QPT_"),
    (engine_enums.QpState, libibverbs_enums.ibv_qp_state, "IBV_QPS_"),
    (engine_enums.WrOpcode, libibverbs_enums.ibv_wr_opcode, "IBV_WR_"),
    (engine_enums.SendFlags, libibverbs_enums.ibv_send_flags, "IBV_SEND_"),
    (engine_enums.WcOpcode, libibverbs_enums.ibv_wc_opcode, "IBV_WC_"),
    (engine_enums.WcStatus, libibverbs_enums.ibv_wc_status, "IBV_WC_"),
    (engine_enums.WcFlags, libibverbs_enums.ibv_wc_flags, "IBV_WC_"),
    (engine_enums.AccessFlags, libibverbs_enums.ibv_access_flags, "IBV_ACCESS_"),
    (engine_enums.MwType, libibverbs_enums.ibv_mw_type, "IBV_MW_"),
    (engine_enums.EventType, libibverbs_enums.ibv_event_type, "IBV_EVENT_"),
    (engine_enums.Mtu, libibverbs_enums.ibv_mtu, "IBV_"),
]


@pytest.mark.parametrize(("ours", "theirs", "prefix"), TWINS, ids=lambda value: str(value))
def test_the_engine_counts_as_the_interface_does(ours: type, theirs: type, prefix: str) -> None:
    for name, member in ours.__members__.items():
        assert theirs[prefix + name] == member


def test_masks_of_attributes_agree() -> None:
    for name, member in QpMask.__members__.items():
        assert libibverbs_enums.ibv_qp_attr_mask[f"IBV_QP_{name}"] == member


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_members_are_attributes_of_the_module(enum: type[IntFlag]) -> None:
    for name, member in enum.__members__.items():
        assert getattr(libibverbs_enums, name) is member


def test_flags_are_walked_and_combined_by_value() -> None:
    access = libibverbs_enums.ibv_access_flags
    combined = 0
    for flag in list(access):
        combined |= flag.value
    assert combined == 0x1003FF
    assert int(access.IBV_ACCESS_LOCAL_WRITE | access.IBV_ACCESS_REMOTE_READ) == 5


def test_constants_that_are_no_enums() -> None:
    assert libibverbs_enums.IBV_LINK_LAYER_ETHERNET == 2
    assert libibverbs_enums.IBV_WC_STANDARD_FLAGS == 0x7F
    assert libibverbs_enums._IBV_ALLOCATOR_USE_DEFAULT == 0xFFFF_FFFF_FFFF_FFFF
    assert librdmacm_enums.RDMA_OPTION_ID_ACK_TIMEOUT == 3
    assert librdmacm_enums.RAI_PASSIVE == 1


def test_enums_of_connection_management() -> None:
    assert librdmacm_enums.rdma_port_space.RDMA_PS_TCP == 0x106
    assert librdmacm_enums.rdma_cm_event_type.RDMA_CM_EVENT_ESTABLISHED == 9
    assert librdmacm_enums.RDMA_CM_EVENT_ESTABLISHED == 9
