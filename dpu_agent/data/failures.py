"""Why a queue pair broke, from its completions."""

from __future__ import annotations

from kvlane.verbs.enums import WcStatus
from kvlane.verbs.records import RecordArray

_CAUSES = {
    WcStatus.RETRY_EXC_ERR: "the host does not answer on the data path any more",
    WcStatus.RNR_RETRY_EXC_ERR: "the host posts no receive buffers for responses",
    WcStatus.REM_ACCESS_ERR: "the host's NIC refused access to memory that a command named; "
    "register it for remote access, and deregister it from the agent before it is freed",
    WcStatus.REM_INV_REQ_ERR: "the host's NIC refused a request; its response buffers may be "
    "too small",
    WcStatus.LOC_LEN_ERR: "the host sent a message larger than a capsule may be",
    WcStatus.WR_FLUSH_ERR: "the queue pair is in the error state",
}


def explain(status: int) -> str:
    """The cause for people, with the name that verbs give it."""
    try:
        known = WcStatus(status)
    except ValueError:
        return f"the NIC reported completion status {status}"
    text = _CAUSES.get(known, "the NIC could not complete a request")
    return f"{text} ({known.name})"


def first_causes(batch: RecordArray) -> dict[int, int]:
    """Queue pair number -> the status that broke it, of the WC records in ``batch``.

    A broken queue pair flushes what it holds, and the flushed completions may be seen
    before the one that says why; the flush counts only where nothing else is known.
    """
    causes: dict[int, int] = {}
    for status, qp_num in zip(batch["status"].tolist(), batch["qp_num"].tolist(), strict=True):
        if status != WcStatus.SUCCESS and causes.get(qp_num) in (None, WcStatus.WR_FLUSH_ERR):
            causes[qp_num] = status
    return causes
