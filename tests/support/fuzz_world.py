"""An engine with queue pairs of every kind and state, and frames that are almost right.

A world is decided by its seed, and so is what is thrown at it: a failure is repeated by
its seed alone.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from emulator.roce.attributes import QpAttributes, QpMask
from emulator.wire.icrc import icrc
from emulator.wire.ip import emit_headers
from emulator.wire.opcode import Opcode
from emulator.wire.packet import RocePacket
from kvlane.verbs.enums import AccessFlags, MwType, QpState, QpType, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.frame_strategies import new_frame
from tests.support.roce_pair import ALL_ACCESS, QKEY, Frame, Pair, reseal
from tests.support.roce_work import part, post, post_receive, receive, to_port, towards, work

OUTCOMES = (
    "rx_runt",
    "rx_icrc_encapsulated",
    "rx_unknown_qp",
    "rx_bad_pkey",
    "rx_bad_header",
    "rx_bad_qkey",
    "rx_wrong_state",
    "rx_accepted",
    "rp_cnp_handled",
    "rp_cnp_ignored",
)
"""What can become of a received frame; each frame counts in just one of these."""

MTU = 256
SIZE = 1500
FIRST_IOVA = 1 << 40
"""Addresses that are the same in every process, so that frames are too."""
_OPCODES = [int(opcode) for opcode in Opcode]
_LENGTHS = (0, 1, 2, 3, 4, 7, 8, 255, 256, 257, 260, 512, 1024, 4096)
_SYNDROMES = (0x1F, 0x1F, 0x60, 0x61, 0x62, 0x63, 0x64, 0x20, 0x2C, 0x40, 0xFF)
_TRANSPORTS = {int(QpType.RC): 0x00, int(QpType.UC): 0x20}
_EDGES = (0, 1, 7, 8, 255, 256, SIZE - 1, SIZE, SIZE + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


class FuzzWorld:
    """The engine under fire, at ``10.0.0.2``, with a peer at ``10.0.0.1`` that only poses."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        options = QpOptions(max_rd_atomic=4, ack_timeout_code=8)
        self._pair = Pair(MTU, options)
        self.port = self._pair.b
        self._pair.a.next_iova = self.port.next_iova = FIRST_IOVA
        self.engine = self.port.engine
        if self._rng.random() < 0.5:
            self.engine.enable_congestion_control(10**9)
        self.now = 0
        self.frames = 0
        access = (
            ALL_ACCESS | AccessFlags.MW_BIND | AccessFlags.FLUSH_GLOBAL,
            AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ,
            AccessFlags.LOCAL_WRITE,
            AccessFlags.MW_BIND,
        )
        self.regions = [self.port.region(SIZE, flags) for flags in access]
        self.inbox = self.port.region(8 * SIZE, AccessFlags.LOCAL_WRITE)
        fill = np.random.default_rng(seed)
        for region in self.regions:
            region.data[:] = fill.integers(0, 256, SIZE, dtype=np.uint8)
        self._untouchable = [(region, region.data.copy()) for region in self.regions[1:]]
        self._srq = self.engine.srqs.create(1, 64)
        self._keys = [region.key for region in self.regions] + [self._window(), 0, 0xFFFFFFFF]
        self.qps = [self.port.qp, *self._further_qps()]
        self._occupy()
        self._before = self.engine.counters()

    def _window(self) -> int:
        window = self.engine.regions.alloc_window(1, MwType.TYPE_2)
        region = self.regions[0]
        bind = work(
            WrOpcode.BIND_MW,
            mw_key=window,
            mw_new_key=77,
            mw_lkey=region.key,
            mw_addr=region.addr + 100,
            mw_length=700,
            mw_access=int(AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE),
        )
        post(self.port, bind)
        self.port.transmit(0)
        return self.engine.regions.current_key(window)

    def _further_qps(self) -> list[int]:
        """One of each kind, one on the shared queue, one in each state."""
        made = [
            self._connected(QpType.UC, -1),
            self._connected(QpType.UD, -1),
            self._connected(QpType.RC, self._srq),
            self._connected(QpType.UD, self._srq),
        ]
        for state in (QpState.RTS, QpState.RTS, QpState.SQD, QpState.ERR, QpState.RESET):
            index = self._connected(QpType.RC, -1)
            if state != QpState.RTS:
                self.engine.qps.modify(index, QpAttributes(qp_state=state), QpMask.STATE)
            made.append(index)
        made.append(self.port.new_qp())
        return made

    def _connected(self, kind: QpType, srq: int) -> int:
        port, kept = self.port, self.port.qp
        port.kind = kind
        port.qp = port.new_qp(srq)
        port.connect(self._pair.a, MTU)
        index, port.qp, port.kind = port.qp, kept, QpType.RC
        self.engine.qps.table[index].access |= int(AccessFlags.FLUSH_GLOBAL)
        return index

    def _occupy(self) -> None:
        """Receives everywhere, and requests under way, so that answers mean something."""
        for wr_id in range(16):
            entry = receive([part(self.inbox, wr_id % 4 * 700, 300), part(self.inbox, 4000, 400)])
            self.engine.srqs.post(self._srq, entry)
        kept = self.port.qp
        for index in self.qps[:-2]:
            self.port.qp = index
            for slot in range(4):
                post_receive(self.port, receive([part(self.inbox, slot * 1000, 1000)]))
        local, far = self.regions[0], self._pair.a.region(SIZE)
        for index in (self.qps[0], self.qps[3], self.qps[5]):
            self.port.qp = index
            for opcode in self._rng.sample(list(WrOpcode), 5):
                length = 8 if "ATOMIC" in opcode.name else self._rng.choice((0, 8, 300, SIZE))
                if opcode == WrOpcode.FLUSH:
                    post(self.port, work(opcode, feth=1, flush_length=length, **towards(far)))
                elif opcode not in (WrOpcode.LOCAL_INV, WrOpcode.BIND_MW):
                    post(self.port, work(opcode, [part(local, 0, length)], **towards(far)))
        self.port.qp = self.qps[2]
        post(self.port, work(WrOpcode.SEND, [part(local, 0, 8)], **to_port(self._pair.a)))
        self.port.qp = kept
        self.port.transmit(self.now)

    # Attack

    def throw(self, frame: Frame) -> list[Frame]:
        """Deliver one frame, look at what is said to it, and let some time pass."""
        self.frames += 1
        self.port.receive(frame, self.now)
        answers = self.port.transmit(self.now)
        self._require_good(answers)
        self.now += self._rng.choice((0, 1_000, 100_000, 2_000_000))
        return answers

    def next_frame(self) -> Frame:
        """What is thrown next: mostly something that is almost right."""
        return self.raw() if self.frames % 16 == 15 else self.almost_right()

    def _require_good(self, frames: list[Frame]) -> None:
        for payload, descriptor in frames:
            headers = emit_headers(descriptor, len(payload))
            assert icrc(headers, payload[:-4]).to_bytes(4, "little") == payload[-4:]
            RocePacket.parse(payload)

    def almost_right(self) -> Frame:
        """A sealed frame with a header that fits its opcode, and numbers that nearly fit."""
        rng = self._rng
        # Those that are in RESET or INIT, the last two, are deaf.
        index = rng.choice(self.qps if rng.random() < 0.1 else self.qps[:-2])
        qp = self.engine.qps.table[index]
        opcode = rng.choice(_OPCODES) if rng.random() < 0.95 else rng.randrange(256)
        if opcode != Opcode.CNP and rng.random() < 0.9:
            opcode = opcode & 0x1F | _TRANSPORTS.get(int(qp.kind), 0x60)
        payload = rng.randbytes(self._payload_bytes(opcode))
        header = self._bth(opcode, qp, -len(payload) & 3)
        body = header + self._extensions(opcode, len(payload)) + payload
        frame = bytearray(body + bytes(-len(payload) & 3) + bytes(4))
        for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 2, 5))):
            self._mutate(frame)
        descriptor = self._descriptor()
        if rng.random() < 0.05 or len(frame) < 16:
            return bytes(frame), descriptor
        return reseal(frame, descriptor)

    def raw(self) -> Frame:
        """Bytes without any sense."""
        return self._rng.randbytes(self._rng.randrange(300)), self._descriptor()

    def _descriptor(self) -> Any:
        source = "::ffff:10.0.0.1" if self._rng.random() < 0.98 else "::ffff:10.0.0.9"
        tos = self._rng.choice((0, 2, 3, 0xFF))
        return new_frame(source, "::ffff:10.0.0.2", src_port=0xC000, dst_port=4791, tos=tos)

    def _bth(self, opcode: int, qp: Any, pad: int) -> bytes:
        rng = self._rng
        near = rng.choice((int(qp.expected_psn), int(qp.una_psn), int(qp.tx_psn)))
        psn = near + rng.choice((0, 0, 0, 0, 1, -1, 2, -2, 7, -7, 1 << 23, rng.getrandbits(24)))
        pkey = 0xFFFF if rng.random() < 0.9 else rng.choice((0x7FFF, 0x1234))
        number = int(qp.qpn) if rng.random() < 0.97 else rng.getrandbits(24)
        return (
            bytes((opcode, rng.choice((0, 0x40, 0x80)) | pad << 4))
            + pkey.to_bytes(2, "big")
            + bytes((rng.choice((0, 0xFF)),))
            + number.to_bytes(3, "big")
            + bytes((rng.choice((0, 0x80)),))
            + (psn & 0xFFFFFF).to_bytes(3, "big")
        )

    def _payload_bytes(self, opcode: int) -> int:
        """Mostly a length that the opcode may have."""
        rng = self._rng
        if rng.random() < 0.3 or opcode not in _OPCODES:
            return rng.choice(_LENGTHS)
        traits = Opcode(opcode).traits
        if opcode == Opcode.CNP:
            return 16
        if not traits.has_payload:
            return 0
        return MTU if traits.is_first or traits.is_middle else rng.choice((0, 1, 8, 255, MTU))

    def _extensions(self, opcode: int, payload_bytes: int) -> bytes:
        if opcode not in _OPCODES:
            return b""
        kinds = Opcode(opcode).traits.extensions
        return b"".join(self._extension(kind.__name__, payload_bytes) for kind in kinds)

    def _extension(self, name: str, payload_bytes: int) -> bytes:
        rng = self._rng
        if name == "Aeth":
            syndrome = rng.choice(_SYNDROMES)
            return bytes((syndrome,)) + rng.randbytes(3)
        if name in ("Reth", "AtomicEth"):
            length = rng.choice((payload_bytes, 3 * MTU, rng.choice(_EDGES), rng.randrange(SIZE)))
            return self._place() + (
                length.to_bytes(4, "big") if name == "Reth" else rng.randbytes(16)
            )
        if name == "Deth":
            return rng.choice((QKEY, QKEY, QKEY, 0)).to_bytes(4, "big") + rng.randbytes(4)
        if name == "Feth":
            return rng.choice((1, 1, 0x11, 0, 2, 3, 0x21, rng.getrandbits(32))).to_bytes(4, "big")
        if name == "Ieth":
            return self._key()
        return rng.randbytes(8 if name == "AtomicAckEth" else 4)

    def _key(self) -> bytes:
        return self._rng.choice(self._keys).to_bytes(4, "big")

    def _place(self) -> bytes:
        rng = self._rng
        region = self.regions[0] if rng.random() < 0.6 else rng.choice(self.regions)
        offset = rng.choice((0, 104, 8, -8, rng.choice(_EDGES)))
        addr = region.addr + offset if rng.random() < 0.95 else rng.getrandbits(64)
        key = region.key.to_bytes(4, "big") if rng.random() < 0.6 else self._key()
        return (addr & ((1 << 64) - 1)).to_bytes(8, "big") + key

    def _mutate(self, frame: bytearray) -> None:
        rng = self._rng
        how = rng.randrange(6)
        if how == 0 and frame:
            frame[rng.randrange(len(frame))] = rng.getrandbits(8)
        elif how == 1 and frame:
            frame[rng.randrange(min(48, len(frame)))] ^= 1 << rng.randrange(8)
        elif how == 2:
            del frame[rng.randrange(len(frame) + 1) :]
        elif how == 3:
            frame += rng.randbytes(rng.choice((1, 4, 28, 300)))
        elif how == 4 and len(frame) > 12:
            frame[1] = frame[1] & 0xCF | rng.randrange(4) << 4
        elif len(frame) > 20:
            at = rng.randrange(len(frame) - 4)
            frame[at : at + 4] = rng.choice(_EDGES).to_bytes(4, "big")

    # What must hold

    def check(self) -> None:
        """Nothing written where it was not allowed, every frame counted once."""
        for region in (*self.regions, self.inbox):
            assert region.guards_hold()
        for region, before in self._untouchable:
            assert (region.data == before).all()
        after = self.engine.counters()
        counted = sum(after[name] - self._before[name] for name in OUTCOMES)
        assert counted == self.frames == after["rx_frames"] - self._before["rx_frames"]
        self.port.poll()
        self.engine.take_events()
        self.engine.take_ready_cqs()
        assert self.engine.next_deadline() >= 0


def attack(seed: int, frames: int) -> int:
    """Throw ``frames`` frames at the world of ``seed`` and check it; returns ``frames``."""
    world = FuzzWorld(seed)
    for _ in range(frames):
        world.throw(world.next_frame())
    world.check()
    return frames
