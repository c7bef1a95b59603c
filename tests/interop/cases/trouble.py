"""Late receivers, lost packets, wrong keys and, as the control of all this, a wrong ICRC."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.interop.cases import reliable
from tests.interop.ends import (
    EMULATOR,
    RXE,
    Ends,
    Pair,
    Side,
    Wiring,
    all_wirings,
    connected,
)
from tests.interop.report import Report, require

LATE_BY_S = 0.15
FOR_EVER = 7
"""As ``rnr_retry`` (IBTA 1.7 section 9.7.5.2.8)."""
LOSS = ("--faults", "drop=0.01", "--seed", "11")
PATIENT = {"timeout": 14, "retry_cnt": 7}
"""Soft-RoCE counts each NAK as a retry until it gets an ACK, and ten losses in a thousand packets
can give seven NAKs in a row; so for ever, which 7 means to it."""
LARGE = 1 << 20
UNTOUCHED = int.from_bytes(b"\xee" * 8, "big")
"""A word of memory that the endpoint has blanked."""
SMALL_MTU = 1024
REM_INV_REQ_ERR, REM_ACCESS_ERR, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR = 9, 10, 12, 13
"""Statuses of a work completion, as in verbs.h."""


def run(ends: Ends, report: Report) -> None:
    """All cells of this part."""
    for wiring in all_wirings():
        _late_receivers(ends, report, wiring)
        _refusals(ends, report, wiring)
        with report.cell("broken ICRC", wiring.setting, wiring.direction, 64):
            _nothing_completes(ends, wiring)
    ends.use_emulator(*LOSS)
    for wiring in all_wirings():
        _losses(ends, report, wiring)
    ends.use_emulator()


def _late_receivers(ends: Ends, report: Report, wiring: Wiring) -> None:
    """RNR NAK: patience gets through, and ends when it was given an end."""
    with (
        report.cell("RNR, late receive", wiring.setting, wiring.direction, 2048),
        connected(ends, wiring, {"rnr_retry": FOR_EVER}) as pair,
    ):
        seed = reliable.seed_of(pair, 2048)
        pair.responder.do("blank", nbytes=2048)
        pair.requester.do("fill", nbytes=2048, seed=seed)
        pair.requester.do("post_send", operation="send", nbytes=2048)
        time.sleep(LATE_BY_S)
        early = pair.requester.do("completions", count=1, within_s=0.0)
        require(not early, f"completed before there was a receive: {early}")
        pair.responder.do("post_recv", nbytes=2048)
        reliable.complete(pair.responder, 2048)
        reliable.complete(pair.requester)
        reliable.require_content(pair.responder, 2048, seed)
    with (
        report.cell("RNR, no receive", wiring.setting, wiring.direction, 64),
        connected(ends, wiring, {"rnr_retry": 2}) as pair,
    ):
        pair.requester.do("post_send", operation="send", nbytes=64)
        _require_status(pair.requester, RNR_RETRY_EXC_ERR)


REFUSALS: dict[str, tuple[str, int]] = {
    "WRITE, wrong rkey": ("write", REM_ACCESS_ERR),
    "READ, wrong rkey": ("read", REM_ACCESS_ERR),
    "atomic, wrong rkey": ("add", REM_ACCESS_ERR),
}
"""Case -> operation and the status that both implementations give the requester."""


def _refusals(ends: Ends, report: Report, wiring: Wiring) -> None:
    for case, (operation, status) in REFUSALS.items():
        with (
            report.cell(case, wiring.setting, wiring.direction, 8),
            connected(ends, wiring) as pair,
        ):
            for side in pair.sides:
                side.do("blank", nbytes=8)
            wrong_key = pair.responder.facts["rkey"] ^ 0x55
            pair.requester.do("post_send", operation=operation, nbytes=8, rkey=wrong_key)
            _require_status(pair.requester, status)
            for side in pair.sides:
                word = side.do("word")
                require(word == UNTOUCHED, f"memory of {side.remote.name} is now {word:#x}")


def _require_status(side: Side, status: int) -> None:
    found = side.do("completions", count=1, within_s=reliable.PATIENCE_S)
    require(found, f"{side.remote.name} completes nothing")
    got = found[0]["status"]
    require(got == status, f"{side.remote.name} completes with status {got} and not {status}")


LOSSY: dict[str, Callable[[Pair, int], None]] = {
    "SEND, 1 % loss": reliable.send,
    "WRITE, 1 % loss": reliable.write,
    "READ, 1 % loss": reliable.read,
    "WRITE imm., 1 % loss": reliable.write_with_immediate,
}


def _losses(ends: Ends, report: Report, wiring: Wiring) -> None:
    """A hundredth of the packets in each direction, and of what answers them."""
    for case, operation in LOSSY.items():
        before = _dropped(ends)
        with (
            report.cell(case, wiring.setting, wiring.direction, LARGE),
            connected(ends, wiring, PATIENT) as pair,
        ):
            operation(pair, LARGE)
            if wiring.mtu == SMALL_MTU:  # else there are too few packets for it to be certain
                lost = sum(_dropped(ends).values()) - sum(before.values())
                require(lost, "not one packet was lost")
    with report.cell("1 % loss both ways", wiring.setting, wiring.direction):
        lost_so_far = _dropped(ends)
        require(all(lost_so_far.values()), f"the link has lost {lost_so_far}")


def _dropped(ends: Ends) -> dict[str, int]:
    """Packets that our link has lost on purpose, by direction."""
    counters = ends.end(EMULATOR).call("counters")
    return {name: counters[name] for name in ("link_dropped_sending", "link_dropped_receiving")}


def _nothing_completes(ends: Ends, wiring: Wiring) -> None:
    """The other implementation must not take a packet of ours that has a wrong ICRC.

    The same connection carries a message first, so that nothing else can be the reason.
    """
    emulator = ends.end(EMULATOR)
    with connected(ends, wiring, {"timeout": 13, "retry_cnt": 2}) as pair:
        reliable.send(pair, 64)
        sent_before = emulator.call("counters")["tx_frames"]
        emulator.call("spoil", on=True)
        try:
            pair.responder.do("post_recv", nbytes=64)
            pair.requester.do("post_send", operation="send", nbytes=64)
            _require_status(pair.requester, RETRY_EXC_ERR)
        finally:
            emulator.call("spoil", on=False)
        sent = emulator.call("counters")["tx_frames"] - sent_before
        require(sent, "the emulator sent nothing at all")
        if wiring.responder == RXE:
            came = pair.responder.do("completions", count=1, within_s=0.0)
            require(not came, f"{RXE} took a packet with a wrong ICRC: {came}")
