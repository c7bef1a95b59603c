"""The emulated NIC behind the verbs that agent and driver speak."""

from __future__ import annotations

import itertools
import secrets
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from emulator.link.faults import FaultPlan
from emulator.nic.anonymous import anonymous_memory
from emulator.nic.assembly import NicParts, assemble_nic
from emulator.nic.links import PCIE, RAW, LinkPlace, open_link
from emulator.nic.options import NicOptions
from emulator.nic.registrable import require_registrable
from emulator.nic.sharing import SharedNic, shared_nic
from emulator.nic.softnic import SoftNic
from emulator.pcie.channels import automatic_channels
from emulator.pcie.device import PcieDevice
from emulator.roce.attributes import (
    REQUIRED,
    AddressHandle,
    QpAttributes,
    QpCaps,
    QpMask,
)
from kvlane.config import load_mapping, parse_endpoint
from kvlane.errors import ConfigError, VerbsError
from kvlane.verbs.calls import VerbCalls
from kvlane.verbs.enums import AccessFlags, Mtu, QpState, QpType
from kvlane.verbs.protocols import QpEndpoint, QpOptions
from kvlane.verbs.records import RecordArray

_domains = itertools.count(1)
"""A device has one protection domain, which is all that agent and driver ask for; no two devices
have the same, since they may share a NIC."""
_MAX_MESSAGE_BYTES = 1 << 31


class EmulatedRegion:
    """A registered buffer."""

    def __init__(
        self, nic: SoftNic, pd: int, buffer: NDArray[np.uint8], access: AccessFlags
    ) -> None:
        self._nic = nic
        self.addr = int(buffer.ctypes.data)
        self.length = int(buffer.nbytes)
        with nic.engine() as engine:
            self.lkey = engine.regions.register(self.addr, self.length, access, pd, buffer)
        self.rkey = self.lkey
        self._open = True

    def close(self) -> None:
        """Deregister."""
        if self._open:
            self._open = False
            with self._nic.engine() as engine:
                engine.regions.deregister(self.lkey)


class EmulatedCq:
    """A completion queue."""

    def __init__(self, nic: SoftNic, depth: int) -> None:
        self._nic = nic
        with nic.engine() as engine:
            self.index = engine.cqs.create(depth)
            self.handle = engine.cqs.number(self.index)
        self._open = True

    def poll(self, out: RecordArray) -> int:
        """Move completions into ``out``."""
        if not self._open:
            raise VerbsError("the completion queue is closed")
        return self._nic.poll_cq(self.index, out)

    def close(self) -> None:
        """Destroy."""
        if self._open:
            self._open = False
            with self._nic.engine() as engine:
                engine.cqs.destroy(self.index)


class EmulatedQp:
    """A reliable connected queue pair."""

    def __init__(
        self,
        nic: SoftNic,
        pd: int,
        cq: EmulatedCq,
        options: QpOptions,
        mtu_bytes: int,
    ) -> None:
        self._nic = nic
        self._mtu_bytes = mtu_bytes
        self._options = options
        caps = QpCaps(max_send_wr=options.max_send_wr, max_recv_wr=options.max_recv_wr)
        with nic.engine() as engine:
            self._index = engine.qps.create(
                QpType.RC, pd=pd, send_cq=cq.index, recv_cq=cq.index, caps=caps
            )
            engine.qps.modify(self._index, *_to_init())
            self.handle = engine.qps.number(self._index)
            self.endpoint = QpEndpoint(
                gid=engine.gid,
                udp_port=nic.link.udp_port,
                qp_num=self.handle,
                psn=engine.qps.draw_psn(),
                mtu_bytes=mtu_bytes,
            )
        self._open = True

    @property
    def state(self) -> QpState:
        """The state now."""
        if not self._open:
            return QpState.RESET
        with self._nic.engine() as engine:
            return engine.qps.state(self._index)

    def connect(self, remote: QpEndpoint) -> None:
        """INIT to RTS."""
        with self._nic.engine() as engine:
            self._require_open()
            mtu = Mtu.from_bytes_size(min(self._mtu_bytes, remote.mtu_bytes))
            engine.qps.modify(self._index, *_to_rtr(remote, mtu, self._options))
            engine.qps.modify(self._index, *_to_rts(self.endpoint.psn, self._options))

    def post_recv(self, requests: RecordArray) -> None:
        """Post receives."""
        with self._nic.engine() as engine:
            self._require_open()
            engine.qps.post_recv(self._index, requests)

    def post_send(self, requests: RecordArray) -> None:
        """Post sends; their first packets leave before this returns."""
        with self._nic.engine() as engine:
            self._require_open()
            engine.qps.post_send(self._index, requests)

    def _require_open(self) -> None:
        if not self._open:
            raise VerbsError("the queue pair is closed")

    def close(self) -> None:
        """Destroy: nothing of it touches memory any more."""
        with self._nic.engine() as engine:
            if self._open:
                self._open = False
                engine.qps.destroy(self._index)


def _to_init() -> tuple[QpAttributes, QpMask]:
    access = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE
    attributes = QpAttributes(qp_state=QpState.INIT, qp_access_flags=int(access))
    return attributes, QpMask.STATE | REQUIRED[QpState.RESET, QpState.INIT][QpType.RC]


def _to_rtr(remote: QpEndpoint, mtu: Mtu, options: QpOptions) -> tuple[QpAttributes, QpMask]:
    attributes = QpAttributes(
        qp_state=QpState.RTR,
        ah=AddressHandle(dgid=remote.gid, udp_port=remote.udp_port),
        path_mtu=int(mtu),
        dest_qp_num=remote.qp_num,
        rq_psn=remote.psn,
        max_dest_rd_atomic=options.max_rd_atomic,
        min_rnr_timer=options.min_rnr_timer_code,
    )
    return attributes, QpMask.STATE | REQUIRED[QpState.INIT, QpState.RTR][QpType.RC]


def _to_rts(first_psn: int, options: QpOptions) -> tuple[QpAttributes, QpMask]:
    attributes = QpAttributes(
        qp_state=QpState.RTS,
        sq_psn=first_psn,
        timeout=options.ack_timeout_code,
        retry_cnt=options.retry_count,
        rnr_retry=options.rnr_retry_count,
        max_rd_atomic=options.max_rd_atomic,
    )
    return attributes, QpMask.STATE | REQUIRED[QpState.RTR, QpState.RTS][QpType.RC]


def _open_nic(options: NicOptions) -> SharedNic:
    seed = options.seed or secrets.randbits(64)
    place = LinkPlace(
        options.link,
        options.interface,
        parse_endpoint(options.listen),
        options.mtu_bytes,
        options.batching,
    )
    link, mtu, where = open_link(place)
    parts = NicParts(
        faults=FaultPlan.parse(options.faults),
        pcap=options.pcap,
        trace=options.trace,
        congestion_bps=options.congestion_bps,
        mtu=mtu,
    )
    faults = f", faults {options.faults}" if options.faults else ""
    name = f"emulated NIC on {where}, MTU {mtu.nbytes}{faults}"
    return SharedNic(assemble_nic(link, parts, seed), options, name, mtu.nbytes)


class EmulatedDevice:
    """An emulated NIC port with one protection domain."""

    max_message_bytes = _MAX_MESSAGE_BYTES

    def __init__(self, options: NicOptions) -> None:
        self._shared = shared_nic(options, lambda: _open_nic(options))
        self._nic = self._shared.nic
        self.calls: VerbCalls = self._nic.calls
        """The verbs for compiled loops."""
        self.name = self._shared.name
        self._pd = next(_domains)
        self._qps: weakref.WeakSet[EmulatedQp] = weakref.WeakSet()
        self._cqs: weakref.WeakSet[EmulatedCq] = weakref.WeakSet()
        self._regions: weakref.WeakSet[EmulatedRegion] = weakref.WeakSet()
        self._open = True

    def alloc(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-aligned zeroed memory."""
        return anonymous_memory(nbytes)

    def register(self, buffer: NDArray[np.uint8], access: AccessFlags) -> EmulatedRegion:
        """Register a contiguous array."""
        require_registrable(buffer, access)
        region = EmulatedRegion(self._nic, self._pd, buffer, access)
        self._regions.add(region)
        return region

    def create_cq(self, depth: int) -> EmulatedCq:
        """A completion queue."""
        cq = EmulatedCq(self._nic, depth)
        self._cqs.add(cq)
        return cq

    def create_qp(self, cq: EmulatedCq, options: QpOptions) -> EmulatedQp:
        """A queue pair in INIT."""
        qp = EmulatedQp(self._nic, self._pd, cq, options, self._shared.mtu_bytes)
        self._qps.add(qp)
        return qp

    @contextmanager
    def hold(self) -> Iterator[None]:
        """The NIC for this thread alone."""
        with self._nic.lock:
            yield

    def take_fault(self) -> BaseException | None:
        """What a function of ``calls`` failed with, since the last call of this."""
        return self._nic.take_fault()

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
        """Release all that was created here, and the NIC unless another device has it."""
        if not self._open:
            return
        self._open = False
        for qp in list(self._qps):
            qp.close()
        for cq in list(self._cqs):
            cq.close()
        for region in list(self._regions):
            region.close()
        self._shared.release()


options_type = NicOptions
"""What ``open_device`` takes."""


def open_device(options: Mapping[str, object]) -> EmulatedDevice | PcieDevice:
    """Open an emulated NIC; see ``NicOptions`` for what ``options`` may hold."""
    chosen = load_mapping(NicOptions, options, where="device.options")
    return PcieDevice(channels=chosen.channels) if chosen.link == PCIE else EmulatedDevice(chosen)


def open_ports(
    options: Mapping[str, object], count: int
) -> Sequence[EmulatedDevice] | Sequence[PcieDevice]:
    """Open ``count`` emulated NICs of the same kind; one where a second would want the same
    interface or file. Where ``listen`` names a UDP port they take it and those after it, without a
    gap; ``ConfigError`` when one of them cannot be had."""
    chosen = load_mapping(NicOptions, options, where="device.options")
    if chosen.link == PCIE:
        channels = chosen.channels or automatic_channels(count)
        return [PcieDevice(channels=channels) for _ in range(count)]
    alone = chosen.link == RAW or chosen.pcap or chosen.trace
    with ExitStack() as undo:
        devices: list[EmulatedDevice] = []
        for number in range(1 if alone else count):
            devices.append(_open_further(chosen, number, count))
            undo.callback(devices[-1].close)
        undo.pop_all()
    return devices


def _open_further(options: NicOptions, number: int, count: int) -> EmulatedDevice:
    """One of ``count``; nobody has named the port of a further one, so the error explains it."""
    try:
        return EmulatedDevice(_numbered(options, number))
    except ConfigError as error:
        if number == 0:
            raise
        raise ConfigError(
            f"{error}; the {count} ports of an agent with {count} workers follow {options.listen}: "
            f"set data.workers to {number} or less, or have the NIC listen where {count} ports in "
            f"a row are free, or on port 0"
        ) from error


def _numbered(options: NicOptions, number: int) -> NicOptions:
    """The options of a further port: with an address and faults of its own."""
    host, port = parse_endpoint(options.listen)
    seed = options.seed + number if options.seed else 0
    return replace(options, listen=f"{host}:{port + number if port else 0}", seed=seed)
