"""Parameters of connections, and what is told of datagram peers."""

from __future__ import annotations

from emulator.pyverbs._cm_addresses import AddrInfo
from emulator.pyverbs._cm_news import CMEvent
from emulator.pyverbs._structure import PlainObject, text_lines, u8, u32
from emulator.pyverbs.addr import AHAttr
from emulator.roce.state import MAX_RD_ATOMIC

MAX_RESOURCES = 0xFF
"""Stands for as many as the device can (RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH)."""
_MOST_RETRIES = 7


class ConnParam(PlainObject):
    """How a connection is to be; for a datagram service only the private data counts."""

    responder_resources = u8()
    initiator_depth = u8()
    flow_control = u8()
    retry_count = u8()
    rnr_retry_count = u8()
    srq = u8()
    qp_num = u32()

    def __init__(
        self,
        resources: int = 1,
        depth: int = 1,
        flow_control: int = 0,
        retry: int = 5,
        rnr_retry: int = 5,
        srq: int = 0,
        qp_num: int = 0,
        data_len: int = 0,
    ) -> None:
        """``data_len`` is the room for private data, which ``set_private_data`` fills.

        The protocol has 56 bytes for connecting and 196 for accepting, with datagrams 180
        and 136.
        """
        super().__init__()
        self.responder_resources = resources
        self.initiator_depth = depth
        self.flow_control = flow_control
        self.retry_count = retry
        self.rnr_retry_count = rnr_retry
        self.srq = srq
        self.qp_num = qp_num
        self._room = data_len
        self._private_data = b""

    @classmethod
    def largest(cls) -> ConnParam:
        """What counts when a program gives none."""
        return cls(MAX_RESOURCES, MAX_RESOURCES, retry=_MOST_RETRIES, rnr_retry=_MOST_RETRIES)

    @property
    def qpn(self) -> int:
        """Number of a queue pair that was not created by the ID."""
        return self.qp_num

    @qpn.setter
    def qpn(self, val: int) -> None:
        self.qp_num = val

    @property
    def private_data(self) -> bytes:
        """What goes along with the message."""
        return self._private_data

    def set_private_data(self, data: bytes) -> None:
        """As much of ``data`` as there is room for; nothing at all changes nothing."""
        kept = bytes(data[: self._room])
        if kept:
            self._private_data = kept

    def __str__(self) -> str:
        return "Connection parameters:\n" + text_lines(
            ("responder resources", self.responder_resources),
            ("initiator depth", self.initiator_depth),
            ("flow control", self.flow_control),
            ("retry count", self.retry_count),
            ("rnr retry count", self.rnr_retry_count),
            ("srq", self.srq),
            ("qp number", self.qp_num),
        )


def resources(wanted: int, offered: int = MAX_RD_ATOMIC) -> int:
    """READs and atomics at once: as many as are wanted, if they may be, or as many as may be."""
    return min(offered, MAX_RD_ATOMIC) if wanted == MAX_RESOURCES else wanted


class UDParam(PlainObject):
    """The datagram queue pair of the peer, as the event of establishment tells it."""

    def __init__(self, cm_event: CMEvent) -> None:
        super().__init__()
        peer = cm_event.news.peer
        self.qp_num = 0 if peer is None else peer.qpn
        self.qkey = 0 if peer is None else peer.qkey
        self.ah_attr = AHAttr() if peer is None else peer.path


class JoinMCAttrEx(PlainObject):
    """How a multicast group is to be joined."""

    comp_mask = u32()
    join_flags = u32()

    def __init__(self, addr: AddrInfo, comp_mask: int = 0, join_flags: int = 0) -> None:
        super().__init__()
        self.addr = addr
        self.comp_mask = comp_mask
        self.join_flags = join_flags
