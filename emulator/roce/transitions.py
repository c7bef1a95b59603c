"""Legal transitions of a queue pair's state (IBTA 1.7 section 10.3.1, figure 124)."""

from __future__ import annotations

from kvlane.errors import VerbsError
from kvlane.verbs.enums import QpState

TRANSITIONS: dict[QpState, frozenset[QpState]] = {
    QpState.RESET: frozenset({QpState.INIT}),
    QpState.INIT: frozenset({QpState.INIT, QpState.RTR}),
    QpState.RTR: frozenset({QpState.RTS}),
    QpState.RTS: frozenset({QpState.RTS, QpState.SQD}),
    QpState.SQD: frozenset({QpState.SQD, QpState.RTS}),
    QpState.SQE: frozenset({QpState.RTS}),
    QpState.ERR: frozenset(),
}
"""From -> to, by modify. RESET and ERR can be reached from every state besides."""

BY_FAULT: dict[QpState, frozenset[QpState]] = {
    QpState.RESET: frozenset(),
    QpState.INIT: frozenset({QpState.ERR}),
    QpState.RTR: frozenset({QpState.ERR}),
    QpState.RTS: frozenset({QpState.SQE, QpState.ERR}),
    QpState.SQD: frozenset({QpState.SQE, QpState.ERR}),
    QpState.SQE: frozenset({QpState.ERR}),
    QpState.ERR: frozenset(),
}
"""From -> to, by itself when something fails. SQE is for faults of sending on UC and UD; from
INIT, it is a completion queue that the queue pair shares with others and that has overrun."""


def require_transition(current: QpState, wanted: QpState) -> None:
    """``VerbsError`` unless a modify may lead from ``current`` to ``wanted``."""
    if wanted in (QpState.RESET, QpState.ERR) or wanted in TRANSITIONS[current]:
        return
    legal = sorted(state.name for state in TRANSITIONS[current] | {QpState.RESET, QpState.ERR})
    raise VerbsError(
        f"a queue pair cannot go from {current.name} to {wanted.name}; "
        f"from {current.name} it can go to {', '.join(legal)}"
    )
