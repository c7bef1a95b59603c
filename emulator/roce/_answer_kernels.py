"""What the responder owes to its peer: one acknowledgement, or one refusal."""

from __future__ import annotations

from typing import Any

from emulator.roce._completion_kernels import enter_error
from emulator.roce._event_kernels import push_event
from emulator.roce.state import (
    ANSWER_ACK,
    ANSWER_NAK,
    ANSWER_NONE,
    INBOUND_SKIP,
    counters_at,
)
from emulator.wire.aeth import UNLIMITED_CREDITS, NakCode
from kvlane.jit import kernel
from kvlane.verbs.enums import EventType, QpType

_NAK_CLASS = 0x60
RNR_CLASS = 0x20
NAK_PSN = _NAK_CLASS | int(NakCode.PSN_SEQUENCE_ERROR)
NAK_INVALID = _NAK_CLASS | int(NakCode.INVALID_REQUEST)
NAK_ACCESS = _NAK_CLASS | int(NakCode.REMOTE_ACCESS_ERROR)
NAK_OPERATION = _NAK_CLASS | int(NakCode.REMOTE_OPERATIONAL_ERROR)
"""Syndromes (IBTA 1.7 section 9.7.5); a timer code is added to RNR's."""

_RC = int(QpType.RC)
_QP_ACCESS_ERR = int(EventType.QP_ACCESS_ERR)
_QP_REQ_ERR = int(EventType.QP_REQ_ERR)


@kernel
def owe_ack(qp: Any, psn: int) -> None:
    """An acknowledgement is due; later ones replace it, because they cover it."""
    if qp.kind == _RC and qp.answer != ANSWER_NAK:
        qp.answer = ANSWER_ACK
        qp.answer_psn = psn
        qp.answer_syndrome = UNLIMITED_CREDITS


@kernel
def owe_nak(qp: Any, psn: int, syndrome: int) -> None:
    """A negative acknowledgement is due; after it, silence until the expected PSN."""
    qp.answer = ANSWER_NAK
    qp.answer_psn = psn
    qp.answer_syndrome = syndrome
    qp.nak_sent = 1


@kernel
def refuse(nic: Any, qp: Any, psn: int, syndrome: int) -> None:
    """A faulty request (IBTA 1.7 section 9.9.3).

    RC, class C: NAK, and this queue pair is in error. UC, class D: the rest of the message
    is dropped, and nobody is told.
    """
    counters = counters_at(nic.counters, 0)
    if syndrome == NAK_ACCESS:
        counters.resp_remote_access_errors += 1
    elif syndrome == NAK_INVALID:
        counters.resp_invalid_request += 1
    if qp.kind != _RC:
        qp.inbound = INBOUND_SKIP
        return
    owe_nak(qp, psn, syndrome)
    push_event(nic, _QP_ACCESS_ERR if syndrome == NAK_ACCESS else _QP_REQ_ERR, qp.qpn)
    enter_error(nic, qp)


@kernel
def answered_by_response(qp: Any) -> None:
    """A response is on its way: it acknowledges what came before it, so no ACK is due."""
    if qp.answer == ANSWER_ACK:
        qp.answer = ANSWER_NONE
