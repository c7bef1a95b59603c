"""A program of pyverbs in miniature: two endpoints on one emulated device, and their traffic."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

from emulator.pyverbs import libibverbs_enums as e
from emulator.pyverbs.addr import AH, AHAttr, GlobalRoute
from emulator.pyverbs.cq import CQ, CQEX, WC, CompChannel, CqInitAttrEx
from emulator.pyverbs.device import Context
from emulator.pyverbs.mr import MR
from emulator.pyverbs.pd import PD
from emulator.pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from emulator.pyverbs.srq import SRQ
from emulator.pyverbs.wr import SGE, RecvWR, SendWR

RC = e.ibv_qp_type.IBV_QPT_RC
UC = e.ibv_qp_type.IBV_QPT_UC
UD = e.ibv_qp_type.IBV_QPT_UD
SUCCESS = e.ibv_wc_status.IBV_WC_SUCCESS
FLUSHED = e.ibv_wc_status.IBV_WC_WR_FLUSH_ERR
GRH_BYTES = 40
QKEY = 0x11111111
ALL_ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE
    | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_REMOTE_WRITE
    | e.IBV_ACCESS_REMOTE_ATOMIC
    | e.IBV_ACCESS_MW_BIND
)
GRANTED = (
    ALL_ACCESS & ~e.IBV_ACCESS_MW_BIND | e.IBV_ACCESS_FLUSH_GLOBAL | e.IBV_ACCESS_FLUSH_PERSISTENT
)
"""What a queue pair grants its peer."""
ALL_SEND_OPS = (
    (1 << e.IBV_WR_SEND_WITH_INV + 1) - 1 | e.IBV_QP_EX_WITH_FLUSH | e.IBV_QP_EX_WITH_ATOMIC_WRITE
)
"""``send_ops_flags`` for whatever a reliable connection can do."""
PATIENCE_S = 60.0
"""After this a test fails that would otherwise hang."""


def wait_until(holds: Callable[[], bool]) -> None:
    """Return when ``holds`` is true."""
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up, "what was waited for has not happened"
        time.sleep(0)


def poll(cq: CQ, count: int = 1) -> list[WC]:
    """Exactly ``count`` completions."""
    done: list[WC] = []

    def has_all() -> bool:
        done.extend(cq.poll(count - len(done))[1])
        return len(done) == count

    wait_until(has_all)
    return done


def is_readable(descriptor: int, timeout_s: float = 0) -> bool:
    """Is there an event in a channel, or in the queue of a context?"""
    return bool(select.select([descriptor], [], [], timeout_s)[0])


def async_event(context: Context) -> int:
    """Type of the next asynchronous event."""
    assert is_readable(context.async_events.fd, PATIENCE_S), "no asynchronous event"
    event = context.get_async_event()
    event.ack()
    return event.event_type


class Endpoint:
    """Everything from the context to a queue pair, for one side of some traffic."""

    def __init__(  # noqa: PLR0913 -- each option is named where it is used
        self,
        device: str,
        kind: int = RC,
        *,
        cap: QPCap | None = None,
        nbytes: int = 4096,
        sq_sig_all: int = 0,
        send_ops: int = 0,
        with_channel: bool = False,
        wc_flags: int | None = None,
        srq: Callable[[PD], SRQ] | None = None,
    ) -> None:
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.channel = CompChannel(self.context) if with_channel else None
        self.cq: Any = (
            CQ(self.context, 64, None, self.channel)
            if wc_flags is None
            else CQEX(self.context, CqInitAttrEx(cqe=64, wc_flags=wc_flags))
        )
        self.mr = MR(self.pd, nbytes, ALL_ACCESS if kind == RC else e.IBV_ACCESS_LOCAL_WRITE)
        self.srq = srq(self.pd) if srq is not None else None
        self.cap = cap or QPCap(16, 16, 4, 4, 64)
        self.kind = kind
        attr = QPAttr()
        attr.qkey = QKEY
        attr.qp_access_flags = GRANTED
        self.qp: Any = self._new_qp(attr, sq_sig_all, send_ops)

    def _new_qp(self, attr: QPAttr, sq_sig_all: int, send_ops: int) -> QP:
        if not send_ops:
            init = QPInitAttr(self.kind, None, self.cq, self.cq, self.srq, self.cap, sq_sig_all)
            return QP(self.pd, init, attr)
        extended = QPInitAttrEx(
            qp_type=self.kind,
            scq=self.cq,
            rcq=self.cq,
            srq=self.srq,
            cap=self.cap,
            sq_sig_all=sq_sig_all,
            pd=self.pd,
            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags=send_ops,
        )
        return QPEx(self.context, extended, attr)

    @property
    def path(self) -> AHAttr:
        """To this device."""
        route = GlobalRoute(dgid=self.context.query_gid(1, 0), sgid_index=0)
        return AHAttr(port_num=1, is_global=1, gr=route)

    def connect(self, peer: Endpoint) -> None:
        """To RTS, towards a peer; datagram queue pairs are there already."""
        if self.kind == UD:
            self.ah = AH(self.pd, attr=self.path)
            return
        attr = QPAttr()
        attr.qp_access_flags = GRANTED
        attr.ah_attr = self.path
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = peer.qp.qp_num
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 1
        attr.sq_psn = attr.rq_psn = 0xFFFFFE
        self.qp.to_rts(attr)

    def sge(self, offset: int, length: int) -> SGE:
        """A part of the memory region."""
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def send_wr(self, opcode: int = e.IBV_WR_SEND, length: int = 16, **options: Any) -> SendWR:
        """A work request over the first bytes of the region."""
        return SendWR(opcode=opcode, num_sge=1, sg=[self.sge(0, length)], **options)

    def recv_wr(self, offset: int, length: int, **options: Any) -> RecvWR:
        """A receive into a part of the region."""
        return RecvWR(num_sge=1, sg=[self.sge(offset, length)], **options)

    def close(self) -> None:
        """Close the context, and with it everything."""
        self.context.close()


def connected(device: str, kind: int = RC, **options: Any) -> tuple[Endpoint, Endpoint]:
    """Two endpoints that can send to each other."""
    client, server = Endpoint(device, kind, **options), Endpoint(device, kind, **options)
    client.connect(server)
    server.connect(client)
    return client, server
