"""The numbers of verbs are those of libibverbs, which hardware and foreign peers speak."""

from __future__ import annotations

from enum import IntEnum, IntFlag

import pytest

from kvlane.verbs.enums import (
    AccessFlags,
    EventType,
    Mtu,
    QpState,
    QpType,
    SendFlags,
    WcFlags,
    WcOpcode,
    WcStatus,
    WrOpcode,
)

# The enums of infiniband/verbs.h (rdma-core): first number, and the names in their order.
LIBIBVERBS: dict[type[IntEnum], tuple[int, str]] = {
    QpType: (2, "RC UC UD"),
    QpState: (0, "RESET INIT RTR RTS SQD SQE ERR"),
    WrOpcode: (
        0,
        "RDMA_WRITE RDMA_WRITE_WITH_IMM SEND SEND_WITH_IMM RDMA_READ ATOMIC_CMP_AND_SWP "
        "ATOMIC_FETCH_AND_ADD LOCAL_INV BIND_MW SEND_WITH_INV TSO DRIVER1 - - FLUSH ATOMIC_WRITE",
    ),
    WcStatus: (
        0,
        "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR MW_BIND_ERR "
        "BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR "
        "RNR_RETRY_EXC_ERR",
    ),
    Mtu: (1, "MTU_256 MTU_512 MTU_1024 MTU_2048 MTU_4096"),
}

NOT_OURS = ("TSO", "DRIVER1", "-")
"""Numbers of what no device here does, and those that the header leaves out."""

LIBIBVERBS_FLAGS: dict[type[IntFlag], str] = {
    SendFlags: "FENCE SIGNALED SOLICITED INLINE",
    WcFlags: "GRH WITH_IMM IP_CSUM_OK WITH_INV",
}


@pytest.mark.parametrize("enum", LIBIBVERBS, ids=lambda enum: enum.__name__)
def test_numbers_count_up_in_the_order_of_the_header(enum: type[IntEnum]) -> None:
    start, names = LIBIBVERBS[enum]
    assert {member.name: member.value for member in enum} == {
        name: number for number, name in enumerate(names.split(), start) if name not in NOT_OURS
    }


@pytest.mark.parametrize("flags", LIBIBVERBS_FLAGS, ids=lambda flags: flags.__name__)
def test_flags_are_the_bits_in_the_order_of_the_header(flags: type[IntFlag]) -> None:
    names = LIBIBVERBS_FLAGS[flags].split()
    assert {str(member.name): member.value for member in flags} == {
        name: 1 << bit for bit, name in enumerate(names)
    }


def test_access_flags_are_those_of_the_header() -> None:
    in_order = "LOCAL_WRITE REMOTE_WRITE REMOTE_READ REMOTE_ATOMIC MW_BIND ZERO_BASED ON_DEMAND"
    wanted = {name: 1 << bit for bit, name in enumerate(in_order.split())}
    wanted |= {"FLUSH_GLOBAL": 1 << 8, "FLUSH_PERSISTENT": 1 << 9}
    wanted["RELAXED_ORDERING"] = 1 << 20  # the first of the optional ones
    assert {str(member.name): member.value for member in AccessFlags} == wanted


def test_events_are_those_of_the_header() -> None:
    first = (
        "CQ_ERR QP_FATAL QP_REQ_ERR QP_ACCESS_ERR COMM_EST SQ_DRAINED PATH_MIG PATH_MIG_ERR "
        "DEVICE_FATAL PORT_ACTIVE PORT_ERR"
    )
    wanted = {name: number for number, name in enumerate(first.split())}
    wanted |= {"SRQ_ERR": 14, "SRQ_LIMIT_REACHED": 15, "QP_LAST_WQE_REACHED": 16}
    assert {member.name: member.value for member in EventType} == wanted


def test_completions_of_receives_have_the_receive_bit() -> None:
    # IBV_WC_RECV is 1 << 7, so that a completion of a receive is told by one bit.
    receive = {opcode for opcode in WcOpcode if opcode & 128}
    assert receive == {WcOpcode.RECV, WcOpcode.RECV_RDMA_WITH_IMM}
    assert (WcOpcode.RECV, WcOpcode.RECV_RDMA_WITH_IMM) == (128, 129)
    sends = [WcOpcode.SEND, WcOpcode.RDMA_WRITE, WcOpcode.RDMA_READ]
    local = [WcOpcode.BIND_MW, WcOpcode.LOCAL_INV]
    assert (WcOpcode.FLUSH, WcOpcode.ATOMIC_WRITE) == (8, 9)
    assert [*sends, WcOpcode.COMP_SWAP, WcOpcode.FETCH_ADD, *local] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("mtu", Mtu)
def test_mtu_has_the_size_in_its_name(mtu: Mtu) -> None:
    assert mtu.nbytes == int(mtu.name.removeprefix("MTU_"))
    assert Mtu.from_bytes_size(mtu.nbytes) is mtu


@pytest.mark.parametrize("nbytes", [0, 128, 1500, 8192, -256])
def test_size_that_no_mtu_has_is_refused_with_those_that_are(nbytes: int) -> None:
    with pytest.raises(ValueError, match=f"{nbytes} bytes; one of .*256.*4096"):
        Mtu.from_bytes_size(nbytes)
