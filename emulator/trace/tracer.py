"""What an engine makes of packets and timers, as events.

The engine's kernels cannot call out. The tracer compares counters and queue pair records
before and after each call, and reads the frames that went in and came out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.link.frames import Burst
from emulator.roce._psn_kernels import psn_diff
from emulator.roce.engine import RoceEngine
from emulator.roce.state import ANSWER_NAK, ANSWER_NONE
from emulator.trace.events import (
    AckTimeout,
    Dropped,
    DuplicateRequest,
    NakReceived,
    NakSent,
    Retransmission,
    RnrNakReceived,
    RnrNakSent,
    StateChange,
)
from emulator.trace.packets import nak_code_name, opcode_name
from emulator.trace.reasons import nak_reason
from emulator.trace.sinks import Sink
from emulator.wire.aeth import RNR_TIMER_NS, Aeth, SyndromeClass
from emulator.wire.bth import Bth
from emulator.wire.errors import WireError
from emulator.wire.opcode import OPERATION_MASK, Opcode, Transport
from kvlane.seams import Clock
from kvlane.verbs.enums import QpState, QpType

DROP_COUNTERS = (
    "rx_runt",
    "rx_icrc_encapsulated",
    "rx_bad_header",
    "rx_unknown_qp",
    "rx_bad_pkey",
    "rx_bad_qkey",
    "rx_wrong_state",
    "rx_no_receive",
    "rx_too_long",
    "rx_uc_gap",
    "out_of_sequence",
)
"""One of these moves when a received packet is dropped; ``rx_uc_gap`` when it shows that the
message before it, or its own, has lost packets and is given up."""
UC_DROP_COUNTERS = ("resp_remote_access_errors", "resp_invalid_request")
"""Likewise for UC alone: RC answers such a request with a NAK."""

_NAK_COUNTERS = ("packet_seq_err", "req_remote_access_errors", "req_remote_invalid_request")
_SENDING = (int(QpState.RTS), int(QpState.SQD), int(QpState.SQE))
_IMPLIED = "IMPLIED"
_RNR = "RNR"
_TIMEOUT = "TIMEOUT"
_POST = "post"
_MODIFY = "modify"
_WAY_IN_FRAME = ("dst_hi", "dst_lo", "dst_port", "src_port")
_WAY_IN_QP = ("remote_hi", "remote_lo", "remote_port", "source_port", "remote_qpn")


class _Way(NamedTuple):
    """Where a frame goes, and from which port: all that it tells of the queue pair it is from."""

    remote_hi: int
    remote_lo: int
    remote_port: int
    source_port: int
    remote_qpn: int


class Tracer:
    """Watches an engine from its making on, and tells a sink; see ``EngineObserver``."""

    def __init__(self, engine: RoceEngine, sink: Sink, clock: Clock) -> None:
        self._engine = engine
        self._table = engine.qps.table
        self._sink = sink
        self._clock = clock
        self._counters: dict[str, int] = {}
        self._states: NDArray[np.int64] = self._table.state.copy()
        """As they were told last."""
        self._numbers: NDArray[np.int64] = self._table.qpn.copy()
        """Whose states those are."""
        self._before: Any = None
        """Before a receive the record of one queue pair, before a transmit all that are used."""
        self._indices: NDArray[np.int64] = np.zeros(0, np.int64)
        self._refusals: dict[int, str] = {}
        """Why a NAK is owed that has not been sent yet, by index of the queue pair."""
        self._causes: dict[int, str] = {}
        """What made a requester go back last, by index of the queue pair."""
        engine.observe(self)

    # Modify

    def state_modified(self, index: int, before: QpState) -> None:
        """Tell of a change by the consumer, then of what it has done to other queue pairs: when
        it overruns their completion queue, they end."""
        at_ns = self._clock()
        self._forget_destroyed()
        self._tell_state(index, before, at_ns, _POST)
        self._tell_state(index, self._engine.qps.state(index), at_ns, _MODIFY)
        self._tell_states(at_ns, _MODIFY)
        self._refusals.pop(index, None)
        self._causes.pop(index, None)

    def _tell_state(self, index: int, after: QpState, at_ns: int, cause: str) -> None:
        before = QpState(int(self._states[index]))
        if after != before:
            self._states[index] = int(after)
            self._sink(
                StateChange(
                    at_ns=at_ns,
                    qpn=self._engine.qps.number(index),
                    before=before,
                    after=after,
                    cause=cause,
                )
            )

    def _tell_states(self, at_ns: int, cause: str) -> None:
        """Tell everything that is not as it was told last."""
        self._forget_destroyed()
        for index in np.flatnonzero(self._states != self._table.state).tolist():
            self._tell_state(index, self._engine.qps.state(index), at_ns, cause)

    def _forget_destroyed(self) -> None:
        """Their end is no change of state, and who gets their place begins in RESET."""
        gone = (self._table.in_use == 0) | (self._table.qpn != self._numbers)
        self._states[gone] = int(QpState.RESET)
        self._numbers[:] = self._table.qpn

    # Receiving

    def before_receive(self, burst: Burst, index: int) -> None:
        """Remember counters and the queue pair that the frame names."""
        self._remember()
        self._before = self._table[self._index_of(burst.payload(index))].copy()

    def after_receive(self, burst: Burst, index: int, now: int) -> None:
        """Tell what the frame has done."""
        payload = burst.payload(index)
        moved = self._moved()
        bth = _bth(payload)
        silent = UC_DROP_COUNTERS if self._before.kind == QpType.UC else ()
        for counter in (*DROP_COUNTERS, *silent):
            if counter in moved:
                self._tell_dropped(counter, bth, now)
        cause = "receive"
        qp_index = self._index_of(payload)
        if bth is not None and self._before.in_use and self._before.qpn == bth.dest_qp:
            answer = _answer(payload, bth)
            self._tell_request(qp_index, bth, moved, now)
            cause = self._tell_answer(qp_index, bth, answer, moved, now) or opcode_name(bth.opcode)
        self._tell_states(now, cause)

    def _index_of(self, payload: bytes) -> int:
        """Of the queue pair that a frame may change."""
        return int.from_bytes(payload[5:8], "big") & (len(self._table) - 1)

    def _tell_dropped(self, counter: str, bth: Bth | None, now: int) -> None:
        self._sink(
            Dropped(
                at_ns=now,
                counter=counter,
                qpn=None if bth is None else bth.dest_qp,
                psn=None if bth is None else bth.psn,
            )
        )

    def _tell_request(self, index: int, bth: Bth, moved: set[str], now: int) -> None:
        """What the frame was to the responder."""
        qp, before = self._table[index], self._before
        if "duplicate_request" in moved:
            self._sink(
                DuplicateRequest(
                    at_ns=now, qpn=bth.dest_qp, psn=bth.psn, opcode=opcode_name(bth.opcode)
                )
            )
        if qp.answer == ANSWER_NAK and before.answer != ANSWER_NAK:
            aeth = Aeth(int(qp.answer_syndrome), 0)
            if aeth.syndrome_class is SyndromeClass.NAK:
                self._refusals[index] = nak_reason(
                    aeth.syndrome_value, before, bth.opcode, bth.psn, moved
                )

    def _tell_answer(
        self, index: int, bth: Bth, aeth: Aeth | None, moved: set[str], now: int
    ) -> str:
        """What the frame was to the requester; the name of the NAK when it was one."""
        failed = self._before.state != QpState.ERR and self._table[index].state == QpState.ERR
        if "rnr_nak_retry_err" in moved and aeth is not None:
            self._causes[index] = _RNR
            self._sink(
                RnrNakReceived(
                    at_ns=now,
                    qpn=bth.dest_qp,
                    psn=bth.psn,
                    wait_ns=RNR_TIMER_NS[aeth.syndrome_value],
                    retries_left=int(self._table[index].rnr_retries_left),
                )
            )
            return _RNR
        code = ""
        if "implied_nak_seq_err" in moved:
            code = _IMPLIED
        elif aeth is not None and aeth.syndrome_class is SyndromeClass.NAK:
            acted = failed or any(counter in moved for counter in _NAK_COUNTERS)
            code = nak_code_name(aeth.syndrome_value) if acted else ""
        if code:
            self._causes[index] = code
            self._sink(NakReceived(at_ns=now, qpn=bth.dest_qp, psn=bth.psn, code=code))
        return code

    # Transmitting

    def before_transmit(self) -> None:
        """Remember counters and all queue pairs that may send."""
        self._remember()
        self._indices = np.flatnonzero(self._table.in_use)
        self._before = self._table[self._indices].copy()

    def after_transmit(self, burst: Burst, now: int) -> None:
        """Tell of timers that ran out, then of the frames."""
        timeouts = "local_ack_timeout_err" in self._moved()
        if timeouts:
            self._tell_timeouts(now)
        self._tell_states(now, _TIMEOUT if timeouts else "transmit")
        if burst.count:
            senders = self._senders()
            for index in range(burst.count):
                self._tell_sent(senders, burst.payload(index), burst.frames[index], now)

    def _tell_timeouts(self, now: int) -> None:
        for before in self._before:
            index = self._engine_index(before)
            qp = self._table[index]
            failed = before.retries_left <= 0 and qp.state == QpState.ERR
            due = 0 < before.ack_deadline <= now and before.state in _SENDING
            if due and (qp.retries_left < before.retries_left or failed):
                self._causes[index] = _TIMEOUT
                self._sink(
                    AckTimeout(
                        at_ns=now,
                        qpn=int(qp.qpn),
                        psn=int(before.una_psn),
                        retries_left=int(qp.retries_left),
                    )
                )

    def _engine_index(self, record: Any) -> int:
        return int(record.qpn) & (len(self._table) - 1)

    def _senders(self) -> dict[_Way, list[Any]]:
        """RC queue pairs as they were, by the way that their frames go."""
        senders: dict[_Way, list[Any]] = {}
        for qp in self._before:
            if qp.kind == QpType.RC and qp.state != QpState.RESET:
                way = _Way._make(int(qp[name]) for name in _WAY_IN_QP)
                senders.setdefault(way, []).append(qp)
        return senders

    def _sender_of(self, candidates: list[Any], bth: Bth) -> Any:
        """Which of several queue pairs has sent a frame. It does not name its sender, so two
        that are connected to the same peer differ by their PSNs alone."""
        if len(candidates) > 1:
            candidates = [qp for qp in candidates if self._may_have_sent(qp, bth)]
        return candidates[0] if candidates else None

    def _may_have_sent(self, before: Any, bth: Bth) -> bool:
        if Opcode(bth.opcode).traits.is_request:
            after = self._table[self._engine_index(before)]
            from_oldest = psn_diff(bth.psn, int(before.una_psn)) >= 0
            return from_oldest and psn_diff(bth.psn, int(after.high_psn)) < 0
        if before.job_head < before.job_tail:
            return psn_diff(bth.psn, int(before.expected_psn)) < 0
        return bool(before.answer != ANSWER_NONE and before.answer_psn == bth.psn)

    def _tell_sent(
        self, senders: dict[_Way, list[Any]], payload: bytes, frame: Any, now: int
    ) -> None:
        bth = Bth.parse(payload)
        way = _Way._make((*(int(frame[name]) for name in _WAY_IN_FRAME), bth.dest_qp))
        if bth.opcode & ~OPERATION_MASK != Transport.RC or way not in senders:
            return
        before = self._sender_of(senders[way], bth)
        if before is None:
            return
        if Opcode(bth.opcode).traits.is_request:
            if psn_diff(bth.psn, int(before.high_psn)) < 0:
                self._tell_retransmission(before, bth, now)
            return
        answer = _answer(payload, bth)
        if answer is not None:
            self._tell_refusal(before, bth, answer, now)

    def _tell_retransmission(self, before: Any, bth: Bth, now: int) -> None:
        self._sink(
            Retransmission(
                at_ns=now,
                qpn=int(before.qpn),
                psn=bth.psn,
                opcode=opcode_name(bth.opcode),
                cause=self._causes.get(self._engine_index(before), ""),
            )
        )

    def _tell_refusal(self, before: Any, bth: Bth, aeth: Aeth, now: int) -> None:
        qpn = int(before.qpn)
        if aeth.syndrome_class is SyndromeClass.RNR_NAK:
            wait_ns = RNR_TIMER_NS[aeth.syndrome_value]
            self._sink(RnrNakSent(at_ns=now, qpn=qpn, psn=bth.psn, wait_ns=wait_ns))
        elif aeth.syndrome_class is SyndromeClass.NAK:
            index = self._engine_index(before)
            # Without a refused request, it is the region of a READ that has gone meanwhile.
            reason = self._refusals.pop(index, "the memory of a READ being answered has gone")
            code = nak_code_name(aeth.syndrome_value)
            self._sink(NakSent(at_ns=now, qpn=qpn, psn=bth.psn, code=code, reason=reason))

    # Comparing

    def _remember(self) -> None:
        # What has changed since the last call was done by a post, which nobody tells of.
        self._tell_states(self._clock(), _POST)
        self._counters = self._engine.counters()

    def _moved(self) -> set[str]:
        """Counters that are not as they were."""
        before = self._counters
        return {name for name, value in self._engine.counters().items() if value != before[name]}


def _bth(payload: bytes) -> Bth | None:
    try:
        return Bth.parse(payload)
    except WireError:
        return None


def _answer(payload: bytes, bth: Bth) -> Aeth | None:
    """The AETH of an acknowledgement."""
    if bth.opcode != Opcode.RC_ACKNOWLEDGE or len(payload) < Bth.NBYTES + Aeth.NBYTES:
        return None
    return Aeth.parse(payload[Bth.NBYTES :])
