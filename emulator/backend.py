"""The emulated NIC behind the verbs that agent and driver speak."""

from __future__ import annotations

import mmap
import random
import secrets
import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from emulator.link.faults import FaultLink, FaultPlan
from emulator.link.frames import Link
from emulator.link.udp import UdpLink
from emulator.nic.options import NicOptions
from emulator.nic.softnic import SoftNic
from emulator.roce.engine import RoceEngine
from kvlane.config import load_mapping, parse_endpoint
from kvlane.errors import VerbsError
from kvlane.verbs.enums import AccessFlags, QpState
from kvlane.verbs.protocols import QpEndpoint, QpOptions
from kvlane.verbs.records import RecordArray

_PD = 1
"""A device has one protection domain, which is all that agent and driver ask for."""
_MAX_MESSAGE_BYTES = 1 << 31


class EmulatedRegion:
    """A registered buffer."""

    def __init__(self, nic: SoftNic, buffer: NDArray[np.uint8], access: AccessFlags) -> None:
        self._nic = nic
        self.addr = int(buffer.ctypes.data)
        self.length = int(buffer.nbytes)
        with nic.engine() as engine:
            self._index, self.lkey = engine.register(buffer, access, _PD)
        self.rkey = self.lkey
        self._open = True

    def close(self) -> None:
        """Deregister."""
        if self._open:
            self._open = False
            with self._nic.engine() as engine:
                engine.deregister(self._index)


class EmulatedCq:
    """A completion queue."""

    def __init__(self, nic: SoftNic, depth: int) -> None:
        self._nic = nic
        with nic.engine() as engine:
            self.index = engine.create_cq(depth)
        self._open = True

    def poll(self, out: RecordArray) -> int:
        """Move completions into ``out``."""
        return self._nic.poll_cq(self.index, out)

    def close(self) -> None:
        """Destroy."""
        if self._open:
            self._open = False
            with self._nic.engine() as engine:
                engine.destroy_cq(self.index)


class EmulatedQp:
    """A reliable connected queue pair."""

    def __init__(self, nic: SoftNic, cq: EmulatedCq, options: QpOptions, mtu_bytes: int) -> None:
        self._nic = nic
        self._mtu_bytes = mtu_bytes
        with nic.engine() as engine:
            self._index = engine.create_qp(
                pd=_PD, send_cq=cq.index, recv_cq=cq.index, options=options
            )
            self.endpoint = QpEndpoint(
                gid=engine.gid,
                udp_port=nic.link.udp_port,
                qp_num=engine.qp_number(self._index),
                psn=engine.qp_first_psn(self._index),
                mtu_bytes=mtu_bytes,
            )
        self._open = True

    @property
    def state(self) -> QpState:
        """The state now."""
        if not self._open:
            return QpState.RESET
        with self._nic.engine() as engine:
            return engine.qp_state(self._index)

    def connect(self, remote: QpEndpoint) -> None:
        """INIT to RTS."""
        with self._nic.engine() as engine:
            engine.connect_qp(self._index, remote, min(self._mtu_bytes, remote.mtu_bytes))

    def post_recv(self, requests: RecordArray) -> None:
        """Post receives."""
        with self._nic.engine() as engine:
            self._require_open()
            engine.post_recv(self._index, requests)

    def post_send(self, requests: RecordArray) -> None:
        """Post sends; their first packets leave before this returns."""
        with self._nic.engine() as engine:
            self._require_open()
            engine.post_send(self._index, requests)

    def _require_open(self) -> None:
        if not self._open:
            raise VerbsError("the queue pair is closed")

    def close(self) -> None:
        """Flush and destroy."""
        with self._nic.engine() as engine:
            if self._open:
                self._open = False
                engine.fail_qp(self._index)
                engine.destroy_qp(self._index)


class EmulatedDevice:
    """An emulated NIC port with one protection domain."""

    max_message_bytes = _MAX_MESSAGE_BYTES

    def __init__(self, options: NicOptions) -> None:
        self._mtu_bytes = options.mtu_bytes
        seed = options.seed or secrets.randbits(64)
        host, port = parse_endpoint(options.listen)
        link: Link = UdpLink(host, port)
        plan = FaultPlan.parse(options.faults)
        if plan != FaultPlan():
            link = FaultLink(link, plan, random.Random(seed))
        engine = RoceEngine(
            gid=link.gid,
            udp_port=link.udp_port,
            source_port=link.source_port,
            window_bytes=link.receive_window_bytes,
            rng=random.Random(seed + 1),
        )
        self._nic = SoftNic(engine, link, time.monotonic_ns)
        faults = f", faults {options.faults}" if options.faults else ""
        self.name = f"emulated NIC on UDP {host}:{link.udp_port}, MTU {options.mtu_bytes}{faults}"

    def alloc(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-aligned zeroed memory."""
        return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)[:nbytes]

    def register(self, buffer: NDArray[np.uint8], access: AccessFlags) -> EmulatedRegion:
        """Register a contiguous array."""
        if not buffer.flags.c_contiguous:
            raise VerbsError("only contiguous memory can be registered")
        return EmulatedRegion(self._nic, buffer, access)

    def create_cq(self, depth: int) -> EmulatedCq:
        """A completion queue."""
        return EmulatedCq(self._nic, depth)

    def create_qp(self, cq: EmulatedCq, options: QpOptions) -> EmulatedQp:
        """A queue pair in INIT."""
        return EmulatedQp(self._nic, cq, options, self._mtu_bytes)

    def progress(self) -> bool:
        """Do the NIC's work in this thread."""
        return self._nic.progress()

    def wait(self, timeout_ms: float, wake_fd: int = -1) -> None:
        """Sleep until there may be work."""
        self._nic.wait(timeout_ms, wake_fd)

    def counters(self) -> dict[str, int]:
        """The port's counters."""
        return self._nic.counters()

    def close(self) -> None:
        """Release the link."""
        self._nic.close()


def open_device(options: Mapping[str, object]) -> EmulatedDevice:
    """Open an emulated NIC; see ``NicOptions`` for what ``options`` may hold."""
    return EmulatedDevice(load_mapping(NicOptions, options, where="device.options"))
