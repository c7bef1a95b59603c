"""Messages of connection management (IBTA 1.7 section 12.6, tables 106 to 120).

Each is the content of a MAD of class 7. Identifiers named ``local`` are the sender's,
``remote`` the receiver's. Alternate paths are carried, but their messages (LAP, APR) are not
spoken: RoCE has no automatic path migration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, TypeAlias

from emulator.wire.errors import WireError
from emulator.wire.layout import Bits, Nested, Octets, Range, Scattered, Structure
from emulator.wire.mad import METHOD_SEND, MadHeader, ManagementClass, parse_mad

CLASS_VERSION = 2
CONTENT_BYTES = 232

REQ_PRIVATE_BYTES = 92
REJ_PRIVATE_BYTES = 148
REP_PRIVATE_BYTES = 196
SIDR_REQ_PRIVATE_BYTES = 216
SIDR_REP_PRIVATE_BYTES = 136

_TIMEOUT_UNIT_NS = 4096


def timeout_ns(code: int) -> int:
    """The time that a 5-bit timeout stands for: 4.096 us x 2^code."""
    return _TIMEOUT_UNIT_NS << code


class AttributeId(IntEnum):
    """Which message a MAD carries (IBTA 1.7 table 104)."""

    REQ = 0x10
    MRA = 0x11
    REJ = 0x12
    REP = 0x13
    RTU = 0x14
    DREQ = 0x15
    DREP = 0x16
    SIDR_REQ = 0x17
    SIDR_REP = 0x18


class TransportService(IntEnum):
    """Transport that a REQ asks for (IBTA 1.7 section 12.7.6)."""

    RC = 0
    UC = 1
    XRC = 3


class AnsweredMessage(IntEnum):
    """Which message a MRA or a REJ is about (IBTA 1.7 sections 12.7.40 and 12.7.41)."""

    REQ = 0
    REP = 1
    OTHER = 2


class RejectReason(IntEnum):
    """Why a connection is refused (IBTA 1.7 table 109)."""

    NO_QP = 1
    NO_EEC = 2
    NO_RESOURCES = 3
    TIMEOUT = 4
    UNSUPPORTED_REQUEST = 5
    INVALID_COMM_ID = 6
    INVALID_COMM_INSTANCE = 7
    INVALID_SERVICE_ID = 8
    INVALID_TRANSPORT_TYPE = 9
    STALE_CONNECTION = 10
    NO_RDC = 11
    PRIMARY_GID_REJECTED = 12
    PRIMARY_LID_REJECTED = 13
    INVALID_PRIMARY_SL = 14
    INVALID_PRIMARY_TRAFFIC_CLASS = 15
    INVALID_PRIMARY_HOP_LIMIT = 16
    INVALID_PRIMARY_PACKET_RATE = 17
    ALTERNATE_GID_REJECTED = 18
    ALTERNATE_LID_REJECTED = 19
    INVALID_ALTERNATE_SL = 20
    INVALID_ALTERNATE_TRAFFIC_CLASS = 21
    INVALID_ALTERNATE_HOP_LIMIT = 22
    INVALID_ALTERNATE_PACKET_RATE = 23
    CM_REDIRECTION = 24
    PORT_REDIRECTION = 25
    INVALID_PATH_MTU = 26
    INSUFFICIENT_RESPONDER_RESOURCES = 27
    CONSUMER_REJECT = 28
    RNR_RETRY_COUNT_REJECTED = 29
    DUPLICATE_COMM_ID = 30
    UNSUPPORTED_CLASS_VERSION = 31
    INVALID_PRIMARY_FLOW_LABEL = 32
    INVALID_ALTERNATE_FLOW_LABEL = 33


class SidrStatus(IntEnum):
    """How a service id resolution fared (IBTA 1.7 section 12.11.2.1)."""

    VALID = 0
    SERVICE_ID_NOT_SUPPORTED = 1
    REJECTED_BY_PROVIDER = 2
    NO_QP = 3
    REDIRECT = 4
    VERSION_NOT_SUPPORTED = 5


_COMM_IDS: Mapping[str, Range] = {
    "local_comm_id": Bits(0, 32),
    "remote_comm_id": Bits(4, 32),
}


@dataclass(frozen=True, slots=True)
class PathRecord(Structure):
    """A path as a REQ describes it; on RoCE the GIDs matter, and LIDs are the permissive one."""

    NBYTES: ClassVar[int] = 44
    LAYOUT: ClassVar[Mapping[str, Range]] = {
        "local_lid": Bits(0, 16),
        "remote_lid": Bits(2, 16),
        "local_gid": Octets(4, 16),
        "remote_gid": Octets(20, 16),
        "flow_label": Bits(36, 20),
        "packet_rate": Bits(39, 6, 2),
        "traffic_class": Bits(40, 8),
        "hop_limit": Bits(41, 8),
        "sl": Bits(42, 4),
        "subnet_local": Bits(42, 1, 4),
        "local_ack_timeout": Bits(43, 5),
    }

    local_gid: bytes = b""
    remote_gid: bytes = b""
    local_lid: int = 0
    remote_lid: int = 0
    flow_label: int = 0
    packet_rate: int = 0
    traffic_class: int = 0
    hop_limit: int = 0
    sl: int = 0
    subnet_local: int = 0
    local_ack_timeout: int = 0
    """Code of the longest time until the sender's transport is answered."""


@dataclass(frozen=True, slots=True)
class Req(Structure):
    """Request for communication (table 106)."""

    ATTRIBUTE: ClassVar[AttributeId] = AttributeId.REQ
    NBYTES: ClassVar[int] = CONTENT_BYTES
    LAYOUT: ClassVar[Mapping[str, Range]] = {
        "local_comm_id": Bits(0, 32),
        "vendor_id": Bits(5, 24),
        "service_id": Bits(8, 64),
        "local_ca_guid": Bits(16, 64),
        "local_qkey": Bits(28, 32),
        "local_qpn": Bits(32, 24),
        "responder_resources": Bits(35, 8),
        "local_eecn": Bits(36, 24),
        "initiator_depth": Bits(39, 8),
        "remote_eecn": Bits(40, 24),
        "remote_response_timeout": Bits(43, 5),
        "transport": Bits(43, 2, 5),
        "flow_control": Bits(43, 1, 7),
        "starting_psn": Bits(44, 24),
        "local_response_timeout": Bits(47, 5),
        "retry_count": Bits(47, 3, 5),
        "pkey": Bits(48, 16),
        "path_mtu": Bits(50, 4),
        "rdc_exists": Bits(50, 1, 4),
        "rnr_retry_count": Bits(50, 3, 5),
        "max_cm_retries": Bits(51, 4),
        "srq": Bits(51, 1, 4),
        "extended_transport": Bits(51, 3, 5),
        "primary": Nested(52, PathRecord),
        "alternate": Nested(96, PathRecord),
        "private_data": Octets(140, REQ_PRIVATE_BYTES),
    }

    local_comm_id: int
    service_id: int
    local_qpn: int
    starting_psn: int
    primary: PathRecord
    local_ca_guid: int = 0
    vendor_id: int = 0
    """Of the enhanced connection establishment; the options are the MAD's attribute modifier."""
    responder_resources: int = 0
    initiator_depth: int = 0
    remote_response_timeout: int = 0
    """Code of the time in which the sender expects an answer."""
    local_response_timeout: int = 0
    """Code of the time in which the sender will answer."""
    transport: int = TransportService.RC
    flow_control: int = 0
    retry_count: int = 0
    rnr_retry_count: int = 0
    path_mtu: int = 0
    """Encoded as ``ibv_mtu``."""
    max_cm_retries: int = 0
    srq: int = 0
    pkey: int = 0xFFFF
    local_qkey: int = 0
    local_eecn: int = 0
    remote_eecn: int = 0
    rdc_exists: int = 0
    extended_transport: int = 0
    alternate: PathRecord = PathRecord()
    private_data: bytes = b""


@dataclass(frozen=True, slots=True)
class Mra(Structure):
    """Message receipt acknowledgment: the answer takes longer (table 107)."""

    ATTRIBUTE: ClassVar[AttributeId] = AttributeId.MRA
    NBYTES: ClassVar[int] = CONTENT_BYTES
    LAYOUT: ClassVar[Mapping[str, Range]] = {
        **_COMM_IDS,
        "answered": Bits(8, 2),
        "service_timeout": Bits(9, 5),
        "private_data": Octets(10, 222),
    }

    local_comm_id: int
    remote_comm_id: int
    answered: int
    service_timeout: int
    private_data: bytes = b""


@dataclass(frozen=True, slots=True)
class Rej(Structure):
    """Rejection (table 108)."""

    ATTRIBUTE: ClassVar[AttributeId] = AttributeId.REJ
    NBYTES: ClassVar[int] = CONTENT_BYTES
    LAYOUT: ClassVar[Mapping[str, Range]] = {
        **_COMM_IDS,
        "answered": Bits(8, 2),
        "info_length": Bits(9, 7),
        "reason": Bits(10, 16),
        "info": Octets(12, 72),
        "private_data": Octets(84, REJ_PRIVATE_BYTES),
    }

    local_comm_id: int
    remote_comm_id: int
    answered: int
    reason: int
    """Most often a ``RejectReason``."""
    info_length: int = 0
    info: bytes = b""
    private_data: bytes = b""


@dataclass(frozen=True, slots=True)
class Rep(Structure):
    """Reply to a request for communication (table 110)."""

    ATTRIBUTE: ClassVar[AttributeId] = AttributeId.REP
    NBYTES: ClassVar[int] = CONTENT_BYTES
    LAYOUT: ClassVar[Mapping[str, Range]] = {
        **_COMM_IDS,
        "local_qkey": Bits(8, 32),
        "local_qpn": Bits(12, 24),
        "vendor_id": Scattered((Bits(15, 8), Bits(19, 8), Bits(23, 8))),
        "local_eecn": Bits(16, 24),
        "starting_psn": Bits(20, 24),
        "responder_resources": Bits(24, 8),
        "initiator_depth": Bits(25, 8),
        "target_ack_delay": Bits(26, 5),
        "failover_accepted": Bits(26, 2, 5),
        "flow_control": Bits(26, 1, 7),
        "rnr_retry_count": Bits(27, 3),
        "srq": Bits(27, 1, 3),
        "local_ca_guid": Bits(28, 64),
        "private_data": Octets(36, REP_PRIVATE_BYTES),
    }

    local_comm_id: int
    remote_comm_id: int
    local_qpn: int
    starting_psn: int
    responder_resources: int = 0
    initiator_depth: int = 0
    rnr_retry_count: int = 0
    local_ca_guid: int = 0
    vendor_id: int = 0
    local_qkey: int = 0
    local_eecn: int = 0
    target_ack_delay: int = 0
    failover_accepted: int = 0
    flow_control: int = 0
    srq: int = 0
    private_data: bytes = b""


@dataclass(frozen=True, slots=True)
class Rtu(Structure):
    """Ready to use (table 111)."""

    ATTRIBUTE: ClassVar[AttributeId] = AttributeId.RTU
    NBYTES: ClassVar[int] = CONTENT_BYTES
    LAYOUT: ClassVar[Mapping[str, Range]] = {**_COMM_IDS, "private_data": Octets(8, 224)}

    local_comm_id: int
    remote_comm_id: int
    private_data: bytes = b""


@dataclass(frozen=True, slots=True)
class Dreq(Structure):
    """Request for the end of communication (table 112)."""

    ATTRIBUTE: ClassVar[AttributeId] = AttributeId.DREQ
    NBYTES: ClassVar[int] = CONTENT_BYTES
    LAYOUT: ClassVar[Mapping[str, Range]] = {
        **_COMM_IDS,
        "remote_qpn": Bits(8, 24),
        "private_data": Octets(12, 220),
    }

    local_comm_id: int
    remote_comm_id: int
    remote_qpn: int
    """The receiver's queue pair, as a proof that the right connection is meant."""
    private_data: bytes = b""


@dataclass(frozen=True, slots=True)
class Drep(Structure):
    """Reply to a request for the end of communication (table 113)."""

    ATTRIBUTE: ClassVar[AttributeId] = AttributeId.DREP
    NBYTES: ClassVar[int] = CONTENT_BYTES
    LAYOUT: ClassVar[Mapping[str, Range]] = {**_COMM_IDS, "private_data": Octets(8, 224)}

    local_comm_id: int
    remote_comm_id: int
    private_data: bytes = b""


@dataclass(frozen=True, slots=True)
class SidrReq(Structure):
    """Question for the queue pair of a datagram service (table 119)."""

    ATTRIBUTE: ClassVar[AttributeId] = AttributeId.SIDR_REQ
    NBYTES: ClassVar[int] = CONTENT_BYTES
    LAYOUT: ClassVar[Mapping[str, Range]] = {
        "request_id": Bits(0, 32),
        "pkey": Bits(4, 16),
        "service_id": Bits(8, 64),
        "private_data": Octets(16, SIDR_REQ_PRIVATE_BYTES),
    }

    request_id: int
    service_id: int
    pkey: int = 0xFFFF
    private_data: bytes = b""


@dataclass(frozen=True, slots=True)
class SidrRep(Structure):
    """Answer to it (table 120)."""

    ATTRIBUTE: ClassVar[AttributeId] = AttributeId.SIDR_REP
    NBYTES: ClassVar[int] = CONTENT_BYTES
    LAYOUT: ClassVar[Mapping[str, Range]] = {
        "request_id": Bits(0, 32),
        "status": Bits(4, 8),
        "info_length": Bits(5, 8),
        "qpn": Bits(8, 24),
        "service_id": Bits(12, 64),
        "qkey": Bits(20, 32),
        "info": Octets(24, 72),
        "private_data": Octets(96, SIDR_REP_PRIVATE_BYTES),
    }

    request_id: int
    service_id: int
    status: int
    qpn: int = 0
    qkey: int = 0
    info_length: int = 0
    info: bytes = b""
    private_data: bytes = b""


CmMessage: TypeAlias = Req | Mra | Rej | Rep | Rtu | Dreq | Drep | SidrReq | SidrRep

MESSAGES: Mapping[AttributeId, type[CmMessage]] = {
    kind.ATTRIBUTE: kind for kind in (Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep)
}


def emit_cm(message: CmMessage, transaction_id: int, attribute_modifier: int = 0) -> bytes:
    """The MAD that carries a message, 256 bytes."""
    header = MadHeader(
        management_class=ManagementClass.COMMUNICATION,
        class_version=CLASS_VERSION,
        attribute_id=message.ATTRIBUTE,
        transaction_id=transaction_id,
        attribute_modifier=attribute_modifier,
    )
    return header.emit_with(message.emit())


def parse_cm(data: bytes) -> tuple[MadHeader, CmMessage]:
    """Header and message of a MAD; ``WireError`` when it is none of connection management."""
    header, content = parse_mad(data)
    if header.management_class != ManagementClass.COMMUNICATION:
        raise WireError(f"a MAD of class {header.management_class:#04x} is not spoken here")
    if header.class_version != CLASS_VERSION:
        raise WireError(f"class version {header.class_version} is not spoken, only 2 is")
    if header.method != METHOD_SEND:
        raise WireError(f"method {header.method:#04x} is none of connection management")
    try:
        kind = MESSAGES[AttributeId(header.attribute_id)]
    except ValueError:
        raise WireError(f"attribute {header.attribute_id:#06x} is not spoken here") from None
    return header, kind.parse(content)
