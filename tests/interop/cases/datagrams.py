"""UD: one packet a message, with its GRH in front."""

from __future__ import annotations

from tests.interop.cases.reliable import complete, require_content, seed_of
from tests.interop.ends import Ends, Pair, Renewed, all_wirings
from tests.interop.report import Report

SIZES = (0, 1, 3, 1023, 1024, 1025, 4096)
GRH_BYTES = 40
PORT_MTU = 4096
"""A datagram queue pair has the port's MTU, so there is nothing to do for a smaller one."""


def run(ends: Ends, report: Report) -> None:
    """All cells of this part."""
    for wiring in all_wirings("ud"):
        if wiring.mtu != PORT_MTU:
            continue
        renewed = Renewed(ends, wiring)
        for nbytes in SIZES:
            cell = report.cell("UD SEND", wiring.setting, wiring.direction, nbytes)
            with cell, renewed.pair() as pair:
                send(pair, nbytes)
        renewed.close()


def send(pair: Pair, nbytes: int) -> None:
    """A datagram into a posted receive."""
    seed = seed_of(pair, nbytes)
    pair.responder.do("blank", nbytes=nbytes)
    pair.responder.do("post_recv", nbytes=GRH_BYTES + nbytes)
    pair.requester.do("fill", nbytes=nbytes, seed=seed)
    pair.requester.do("post_send", operation="send", nbytes=nbytes)
    complete(pair.requester)
    complete(pair.responder, GRH_BYTES + nbytes)
    require_content(pair.responder, nbytes, seed, offset=GRH_BYTES)
