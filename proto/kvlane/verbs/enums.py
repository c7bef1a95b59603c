"""Numbers of the verbs interface, with the values that libibverbs gives them."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class QpType(IntEnum):
    """Transport service of a queue pair (``ibv_qp_type``)."""

    RC = 2
    UC = 3
    UD = 4


class QpState(IntEnum):
    """State of a queue pair (``ibv_qp_state``; IBTA 1.7 section 10.3.1)."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    ERR = 6


class WrOpcode(IntEnum):
    """What a send work request asks for (``ibv_wr_opcode``)."""

    RDMA_WRITE = 0
    RDMA_WRITE_WITH_IMM = 1
    SEND = 2
    SEND_WITH_IMM = 3
    RDMA_READ = 4
    ATOMIC_CMP_AND_SWP = 5
    ATOMIC_FETCH_AND_ADD = 6
    LOCAL_INV = 7
    BIND_MW = 8
    SEND_WITH_INV = 9
    FLUSH = 14
    ATOMIC_WRITE = 15


class SendFlags(IntFlag):
    """Options of a send work request (``ibv_send_flags``)."""

    FENCE = 1
    SIGNALED = 2
    SOLICITED = 4
    INLINE = 8


class WcOpcode(IntEnum):
    """What a completion completes (``ibv_wc_opcode``)."""

    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMP_SWAP = 3
    FETCH_ADD = 4
    BIND_MW = 5
    LOCAL_INV = 6
    FLUSH = 8
    ATOMIC_WRITE = 9
    RECV = 128
    RECV_RDMA_WITH_IMM = 129


class WcStatus(IntEnum):
    """How a work request ended (``ibv_wc_status``)."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_EEC_OP_ERR = 3
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13


class AccessFlags(IntFlag):
    """What a memory region permits (``ibv_access_flags``)."""

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8
    MW_BIND = 16
    ZERO_BASED = 32
    ON_DEMAND = 64
    FLUSH_GLOBAL = 1 << 8
    FLUSH_PERSISTENT = 1 << 9
    RELAXED_ORDERING = 1 << 20


class WcFlags(IntFlag):
    """What a completion of a receive carries besides (``ibv_wc_flags``)."""

    GRH = 1
    WITH_IMM = 2
    IP_CSUM_OK = 4
    WITH_INV = 8


class MwType(IntEnum):
    """Kinds of memory window (``ibv_mw_type``)."""

    TYPE_1 = 1
    TYPE_2 = 2


class EventType(IntEnum):
    """Asynchronous events (``ibv_event_type``)."""

    CQ_ERR = 0
    QP_FATAL = 1
    QP_REQ_ERR = 2
    QP_ACCESS_ERR = 3
    COMM_EST = 4
    SQ_DRAINED = 5
    PATH_MIG = 6
    PATH_MIG_ERR = 7
    DEVICE_FATAL = 8
    PORT_ACTIVE = 9
    PORT_ERR = 10
    SRQ_ERR = 14
    SRQ_LIMIT_REACHED = 15
    QP_LAST_WQE_REACHED = 16


class Mtu(IntEnum):
    """Path MTU as it is encoded (``ibv_mtu``); ``nbytes`` gives the size."""

    MTU_256 = 1
    MTU_512 = 2
    MTU_1024 = 3
    MTU_2048 = 4
    MTU_4096 = 5

    @property
    def nbytes(self) -> int:
        """The payload of a full packet in bytes."""
        return 128 << self.value

    @classmethod
    def from_bytes_size(cls, nbytes: int) -> Mtu:
        """The encoding of an MTU given in bytes; ``ValueError`` when there is none."""
        for mtu in cls:
            if mtu.nbytes == nbytes:
                return mtu
        raise ValueError(f"no path MTU of {nbytes} bytes; one of {[m.nbytes for m in cls]}")
