"""Queue pair 1 of a NIC: sends and receives MADs (IBTA 1.7 section 10.2.5)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from emulator.cm.manager import OutgoingMad
from emulator.link.gid import gid_halves, source_index
from emulator.nic.softnic import SoftNic
from emulator.roce._datagram_kernels import GRH_BYTES
from emulator.roce.attributes import REQUIRED, QpAttributes, QpCaps, QpMask
from emulator.roce.state import ARM_NEXT, RQE, WQE
from emulator.wire.mad import GSI_QKEY, GSI_QPN, MAD_BYTES
from kvlane.errors import QueueFullError
from kvlane.limits import ROCE_V2_UDP_PORT
from kvlane.verbs.enums import (
    AccessFlags,
    QpState,
    QpType,
    SendFlags,
    WcOpcode,
    WcStatus,
    WrOpcode,
)
from kvlane.verbs.records import WC, RecordArray, new_records

_RECEIVES = 256
"""MADs that may arrive before somebody looks; more are lost, and their senders try again."""
_SENDS = 256
_SLOT_BYTES = GRH_BYTES + MAD_BYTES
_IPV4_MAPPED_PREFIX = bytes(10) + b"\xff\xff"
_WAY_UP = (QpState.RESET, QpState.INIT, QpState.RTR, QpState.RTS)


def sender_gid(header: bytes) -> bytes:
    """Who sent a datagram, from the 40 bytes of network header in front of it.

    An IPv4 header fills the last 20 of them (``rdma_network_hdr`` of Linux).
    """
    if header[0] >> 4 == 6:
        return header[8:24]
    return _IPV4_MAPPED_PREFIX + header[32:36]


class GsiQueuePair:
    """The general services interface of one NIC; there can be only one."""

    def __init__(self, nic: SoftNic, pd: int) -> None:
        self._nic = nic
        self._gids = nic.link.gids
        self._slots = np.zeros((_RECEIVES, _SLOT_BYTES), np.uint8)
        self._outbox = np.zeros((_SENDS, MAD_BYTES), np.uint8)
        self._completions = new_records(WC, _RECEIVES)
        caps = QpCaps(max_send_wr=_SENDS, max_recv_wr=_RECEIVES, max_inline_data=MAD_BYTES)
        with nic.engine() as engine:
            self._key = engine.regions.register(
                int(self._slots.ctypes.data),
                self._slots.nbytes,
                AccessFlags.LOCAL_WRITE,
                pd,
                self._slots,
            )
            self.cq = engine.cqs.create(_RECEIVES + _SENDS)
            self._qp = engine.qps.create(
                QpType.UD, pd=pd, send_cq=self.cq, recv_cq=self.cq, caps=caps, number=GSI_QPN
            )
            for before, after in itertools.pairwise(_WAY_UP):
                attributes = QpAttributes(qp_state=after, qkey=GSI_QKEY)
                needed = REQUIRED[before, after][QpType.UD]
                engine.qps.modify(self._qp, attributes, QpMask.STATE | needed)
        self._post_receives(range(_RECEIVES))

    def arm(self) -> None:
        """Have the NIC tell of the next MAD."""
        with self._nic.engine() as engine:
            engine.cqs.arm(self.cq, ARM_NEXT)

    def receive(self) -> list[tuple[bytes, bytes]]:
        """MADs that have arrived, each with the GID of its sender."""
        out = self._completions
        count = self._nic.poll_cq(self.cq, out)
        arrived: list[tuple[bytes, bytes]] = []
        free: list[int] = []
        for wc in out[:count]:
            if wc.opcode != WcOpcode.RECV or wc.status != WcStatus.SUCCESS:
                continue
            slot = self._slots[int(wc.wr_id)]
            data = slot[: int(wc.byte_len)].tobytes()
            arrived.append((sender_gid(data[:GRH_BYTES]), data[GRH_BYTES:]))
            free.append(int(wc.wr_id))
        self._post_receives(free)
        return arrived

    def send(self, mads: Sequence[OutgoingMad]) -> None:
        """Send MADs. What has no room is lost, as on a network, and will be sent again."""
        batch = mads[:_SENDS]
        if not batch:
            return
        works = new_records(WQE, len(batch))
        for index, mad in enumerate(batch):
            self._outbox[index] = np.frombuffer(mad.data, np.uint8)
            work = works[index]
            work.opcode = WrOpcode.SEND
            # Inline: the outbox may be written anew as soon as this is posted.
            work.send_flags = SendFlags.INLINE
            work.ud_hi, work.ud_lo = gid_halves(mad.gid)
            local = self._gids[source_index(self._gids, mad.gid)]
            work.ud_local_hi, work.ud_local_lo = gid_halves(local)
            work.ud_port = self._udp_port_of(mad.gid)
            work.ud_qpn, work.ud_qkey = GSI_QPN, GSI_QKEY
            _put_element(work, int(self._outbox[index].ctypes.data), MAD_BYTES, 0)
        with self._nic.engine() as engine:
            for index in range(len(works)):
                try:
                    engine.qps.post_work(self._qp, works[index : index + 1])
                except QueueFullError:
                    return

    def _udp_port_of(self, gid: bytes) -> int:
        return self._nic.link.udp_port if gid in self._gids else ROCE_V2_UDP_PORT

    def _post_receives(self, slots: Sequence[int]) -> None:
        if not slots:
            return
        entries = new_records(RQE, len(slots))
        for entry, slot in zip(entries, slots, strict=True):
            entry.wr_id = slot
            _put_element(entry, int(self._slots[slot].ctypes.data), _SLOT_BYTES, self._key)
        with self._nic.engine() as engine:
            engine.qps.post_receives(self._qp, entries)


def _put_element(record: RecordArray, addr: int, length: int, lkey: int) -> None:
    record.num_sge, record.length = 1, length
    record.sge_addr[0], record.sge_length[0], record.sge_lkey[0] = addr, length, lkey
