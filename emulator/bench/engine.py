"""``engine``: what the transport alone takes, both ends of a WRITE on one core and no socket.

The limit beside it is a plain copy of the same payload, since that is what the work is for.
Times are of the processor, so that a busy machine does not count against either.
"""

from __future__ import annotations

import itertools
import random
import time

import numpy as np

from emulator.bench.report import Report, summarise
from emulator.bench.rounds import Progress
from emulator.link.frames import Burst
from emulator.roce.attributes import REQUIRED, AddressHandle, QpAttributes, QpCaps, QpMask
from emulator.roce.engine import RoceEngine
from kvlane.verbs.enums import AccessFlags, Mtu, QpState, QpType, SendFlags, WrOpcode
from kvlane.verbs.records import SEND_WR, WC, new_records

NAME = "engine"
MESSAGE_BYTES = 1 << 20
MESSAGES_PER_ROUND = 64
_ACCESS = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
_STATES = (QpState.RESET, QpState.INIT, QpState.RTR, QpState.RTS)


class _End:
    """An engine with one queue pair and one region."""

    def __init__(self, last_byte: int) -> None:
        gid = bytes(10) + b"\xff\xff" + bytes((10, 0, 0, last_byte))
        self.engine = RoceEngine(
            gid=gid,
            source_port=0,
            window_bytes=1 << 20,
            rng=random.Random(last_byte),
        )
        self.memory = np.ones(MESSAGE_BYTES, np.uint8)
        self.addr = int(self.memory.ctypes.data)
        self.key = self.engine.regions.register(self.addr, MESSAGE_BYTES, _ACCESS, 1, self.memory)
        self.cq = self.engine.cqs.create(64)
        self.qp = self.engine.qps.create(
            QpType.RC, pd=1, send_cq=self.cq, recv_cq=self.cq, caps=QpCaps(max_send_wr=8)
        )
        self.burst = Burst(256, 256 * 1024)

    def connect(self, peer: _End, mtu: Mtu) -> None:
        """RESET to RTS."""
        attributes = QpAttributes(
            qp_access_flags=int(_ACCESS),
            ah=AddressHandle(dgid=peer.engine.gid),
            path_mtu=int(mtu),
            dest_qp_num=peer.engine.qps.number(peer.qp),
            max_rd_atomic=1,
            max_dest_rd_atomic=1,
            timeout=14,
            retry_cnt=7,
            rnr_retry=7,
        )
        for before, after in itertools.pairwise(_STATES):
            attributes.qp_state = after
            mask = QpMask.STATE | REQUIRED[before, after][QpType.RC]
            self.engine.qps.modify(self.qp, attributes, mask)

    def post_write(self, peer: _End) -> None:
        """One WRITE of the whole region."""
        request = new_records(SEND_WR, 1)
        request.opcode = int(WrOpcode.RDMA_WRITE)
        request.send_flags = int(SendFlags.SIGNALED)
        request.local_addr, request.length, request.lkey = self.addr, MESSAGE_BYTES, self.key
        request.remote_addr, request.rkey = peer.addr, peer.key
        self.engine.qps.post_send(self.qp, request)


def _packets_per_second(mtu: Mtu) -> float:
    """Packets from one engine to the other in a second of one processor, both ends' work."""
    a, b = _End(1), _End(2)
    a.connect(b, mtu)
    b.connect(a, mtu)
    done = new_records(WC, 8)
    start = 0.0
    for number in range(MESSAGES_PER_ROUND + 1):
        if number == 1:
            start = time.process_time()
        a.post_write(b)
        now = 0
        while a.engine.cqs.poll(a.cq, done) == 0:
            now += 1000
            a.engine.transmit(a.burst, now)
            b.engine.receive(a.burst, now)
            b.engine.transmit(b.burst, now)
            a.engine.receive(b.burst, now)
    seconds = time.process_time() - start
    return MESSAGES_PER_ROUND * (MESSAGE_BYTES // mtu.nbytes) / seconds


def _copies_per_second(mtu: Mtu) -> float:
    """The same payloads a second, copied once by memcpy."""
    source, target = np.ones(MESSAGE_BYTES, np.uint8), np.zeros(MESSAGE_BYTES, np.uint8)
    start = time.process_time()
    for _ in range(4 * MESSAGES_PER_ROUND):
        target[:] = source
    seconds = time.process_time() - start
    return 4 * MESSAGES_PER_ROUND * (MESSAGE_BYTES // mtu.nbytes) / seconds


def run(rounds: int, progress: Progress) -> Report:
    """Measure; ``progress`` is told what is going on."""
    report = Report()
    for mtu in (Mtu.MTU_4096, Mtu.MTU_256):
        progress(f"MTU {mtu.nbytes}")
        pairs = [(_packets_per_second(mtu), _copies_per_second(mtu)) for _ in range(rounds)]
        report.results.append(
            summarise(
                f"engine-{mtu.nbytes}",
                "Mpackets/s",
                [packets / 1e6 for packets, _ in pairs],
                "memcpy of the same payloads",
                [copies / 1e6 for _, copies in pairs],
            )
        )
    return report
