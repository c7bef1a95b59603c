"""Looks on as a queue pair transmits: are its windows kept, and do they ever close?"""

from __future__ import annotations

from tests.support.rc_flow import RESPONDED, Flow
from tests.support.roce_pair import Port

_PSN_MASK = 0xFFFFFF


class WindowWatch:
    """Counts the times that a window held back work of some flows on lossy links."""

    def __init__(self, flows: list[Flow], mtu: int) -> None:
        self._flows = flows
        self._mtu = mtu
        self.send_closings = 0
        """Bursts after which the send window kept a packet back, once one has been repeated."""
        self.read_closings = 0
        """The same for a READ and the READ window."""

    def look_at(self, port: Port) -> None:
        """To be called whenever ``port`` has transmitted."""
        repeated = port.engine.counters()["retransmitted_packets"] > 0
        for flow in self._flows:
            if flow.port is port:
                self._look_at(flow, repeated)

    def _look_at(self, flow: Flow, repeated: bool) -> None:
        qp = flow.port.engine.qps.table[flow.qp]
        sent = (int(qp.tx_psn) - int(qp.una_psn)) & _PSN_MASK
        awaited = int(qp.read_packets)
        assert sent - awaited <= qp.window, "more is under way than the send window allows"
        alone = qp.rd_outstanding <= 1
        assert alone or awaited <= qp.read_window, "more is asked for than the READ window allows"
        position = int(qp.sq_next)
        if position >= qp.sq_tail or not repeated:
            return
        if flow.opcodes[position] not in RESPONDED:
            self.send_closings += int(sent - awaited == qp.window)
        elif qp.rd_outstanding < qp.max_rd_atomic and qp.tx_psn == qp.high_psn:
            packets = max(1, -(-flow.lengths.get(position, 0) // self._mtu))
            self.read_closings += int(awaited > 0 and awaited + packets > qp.read_window)
