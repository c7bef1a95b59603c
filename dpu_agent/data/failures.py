"""Why a queue pair broke, from the status of a completion."""

from __future__ import annotations

from kvlane.verbs.enums import WcStatus

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
