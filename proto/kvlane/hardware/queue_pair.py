"""An RC queue pair."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address
from typing import Any

from kvlane.errors import VerbsError
from kvlane.hardware.abi import QP_STATE_MASK
from kvlane.hardware.completion_queue import HardwareCq
from kvlane.hardware.core import DeviceCore
from kvlane.hardware.failures import CONNECTING, CREATING, DESTROYING, POSTING, WORKING, failing
from kvlane.hardware.gids import address_text
from kvlane.hardware.requests import (
    SendRequests,
    post_receives,
    require_length,
    require_postable_sends,
    rows_of,
)
from kvlane.hardware.selection import ChosenPort
from kvlane.hardware.work_ring import QueuePairWork
from kvlane.limits import ROCE_V2_UDP_PORT
from kvlane.verbs.calls import CallsOfMethods
from kvlane.verbs.enums import AccessFlags, Mtu, QpState, QpType
from kvlane.verbs.protocols import QpEndpoint, QpOptions
from kvlane.verbs.records import RecordArray

_PSN_BITS = 24
_HOP_LIMIT = 64
"""pyverbs' own default is 1, with which the first router drops the packet."""
_GID_BYTES = 16


class HardwareQp:
    """A reliable connected queue pair."""

    def __init__(
        self,
        core: DeviceCore,
        port: ChosenPort,
        pd: Any,
        cq: HardwareCq,
        options: QpOptions,
        send_requests: SendRequests,
        methods: CallsOfMethods,
    ) -> None:
        self._core = core
        self._port = port
        self._cq = cq
        self._options = options
        self._send_requests = send_requests
        self._work = QueuePairWork(options.max_send_wr, options.max_recv_wr)
        self._is_connected = False
        self._broken = ""
        with core.lock:
            self._qp = self._created(pd)
            self.endpoint = QpEndpoint(
                gid=port.gid.address.packed,
                udp_port=ROCE_V2_UDP_PORT,
                qp_num=int(self._qp.qp_num),
                psn=secrets.randbits(_PSN_BITS),
                mtu_bytes=port.mtu_bytes,
            )
            cq.attach(self.endpoint.qp_num, self._work)
        self._is_open = True
        self._methods = methods
        self.handle = methods.add_qp(self)

    def _created(self, pd: Any) -> Any:
        """A queue pair of pyverbs in INIT."""
        options, names = self._options, self._core.binding.qp
        cap = names.QPCap(options.max_send_wr, options.max_recv_wr, 1, 1, 0)
        init = names.QPInitAttr(
            qp_type=int(QpType.RC), scq=self._cq.cq, rcq=self._cq.cq, cap=cap, sq_sig_all=0
        )
        attributes = names.QPAttr(port_num=self._port.number)
        attributes.qp_access_flags = int(AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE)
        depths = f"{options.max_send_wr} sends and {options.max_recv_wr} receives"
        with failing(self._core.binding, f"creating a queue pair of {depths}", CREATING):
            return names.QP(pd, init, attributes)

    @property
    def state(self) -> QpState:
        """The state now. It is asked of the device: what pyverbs remembers is from the last
        transition that it made, and does not become ERR by itself."""
        with self._core.lock:
            if not self._is_open:
                return QpState.RESET
            with failing(self._core.binding, "querying a queue pair", WORKING):
                attributes, _ = self._qp.query(QP_STATE_MASK)
            return QpState(int(attributes.qp_state))

    def connect(self, remote: QpEndpoint) -> None:
        """INIT to RTS."""
        peer = _peer_address(remote, self._port.gid.address)
        options = self._options
        attributes = self._core.binding.qp.QPAttr(port_num=self._port.number)
        attributes.qp_access_flags = int(AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE)
        attributes.ah_attr = self._path_to(peer)
        attributes.path_mtu = int(_common_mtu(self._port.mtu_bytes, remote.mtu_bytes))
        attributes.dest_qp_num = remote.qp_num
        attributes.rq_psn = remote.psn
        attributes.sq_psn = self.endpoint.psn
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = options.max_rd_atomic
        attributes.min_rnr_timer = options.min_rnr_timer_code
        attributes.timeout = options.ack_timeout_code
        attributes.retry_cnt = options.retry_count
        attributes.rnr_retry = options.rnr_retry_count
        whither = f"{address_text(peer)} from {address_text(self._port.gid.address)}"
        with self._core.lock:
            self._require_open()
            for step in ("to_rtr", "to_rts"):
                doing = f"connecting to {whither} ({step})"
                with failing(self._core.binding, doing, CONNECTING):
                    getattr(self._qp, step)(attributes)
            self._is_connected = True

    def _path_to(self, peer: IPv6Address) -> Any:
        names = self._core.binding.addr
        route = names.GlobalRoute(
            dgid=names.GID(peer.exploded), sgid_index=self._port.gid.index, hop_limit=_HOP_LIMIT
        )
        return names.AHAttr(port_num=self._port.number, is_global=1, gr=route)

    def post_recv(self, requests: RecordArray) -> None:
        """Post receives."""
        rows = rows_of(requests)
        for row in rows:
            require_length(row[2], self._port.max_message_bytes)
        with self._core.lock:
            self._require_open()
            tickets = self._work.receives.admit(requests["wr_id"])
            if rows:
                with self._posting("posting receives"):
                    post_receives(self._core.binding, self._qp, rows, tickets)

    def post_send(self, requests: RecordArray) -> None:
        """Post sends."""
        rows = rows_of(requests)
        require_postable_sends(rows, self._port.max_message_bytes)
        with self._core.lock:
            self._require_open()
            if not self._is_connected:
                # Libraries of devices do not check it; what would happen is not defined.
                raise VerbsError("nothing can be posted before the queue pair is connected")
            tickets = self._work.sends.admit(requests["wr_id"])
            if rows:
                with self._posting("posting sends"):
                    self._qp.post_send(self._send_requests.fill(rows, tickets))

    @contextmanager
    def _posting(self, doing: str) -> Iterator[None]:
        """A device that refuses a batch may have taken a part of it, and does not say which.

        So the queue pair is ended: what was taken is flushed, and nothing more is posted.
        """
        try:
            with failing(self._core.binding, doing, POSTING):
                yield
        except VerbsError as error:
            self._broken = str(error)
            ended = self._core.binding.qp.QPAttr(qp_state=int(QpState.ERR))
            with suppress(VerbsError), failing(self._core.binding, "ending a queue pair", WORKING):
                self._qp.modify(ended, QP_STATE_MASK)
            raise

    def _require_open(self) -> None:
        if not self._is_open:
            raise VerbsError("the queue pair is closed")
        if self._broken:
            raise VerbsError(f"the queue pair has ended, since {self._broken}")

    def close(self) -> None:
        """Destroy: when this returns the device has let go of all memory."""
        with self._core.lock:
            if not self._is_open:
                return
            with failing(self._core.binding, "destroying a queue pair", DESTROYING):
                self._qp.close()
            self._is_open = False
            self._cq.detach(self.endpoint.qp_num)
            self._core.forget(self)
            self._methods.forget(self.handle)


def _peer_address(remote: QpEndpoint, own: IPv6Address) -> IPv6Address:
    """The peer's address; ``VerbsError`` for one that hardware cannot reach from ``own``."""
    if len(remote.gid) != _GID_BYTES:
        raise VerbsError(f"the peer's GID has {len(remote.gid)} bytes; a GID has {_GID_BYTES}")
    peer = IPv6Address(remote.gid)
    if remote.udp_port != ROCE_V2_UDP_PORT:
        raise VerbsError(
            f"the peer's NIC receives at UDP port {remote.udp_port}, and an RDMA device sends to "
            f"{ROCE_V2_UDP_PORT} only; have an emulated NIC listen there "
            f"(listen: {address_text(peer)}:{ROCE_V2_UDP_PORT})"
        )
    if (peer.ipv4_mapped is None) != (own.ipv4_mapped is None):
        raise VerbsError(
            f"the peer's address is {address_text(peer)} and this end's {address_text(own)}: one "
            f"is IPv4, the other IPv6; choose a gid_index of the same family at both ends"
        )
    return peer


def _common_mtu(own_bytes: int, remote_bytes: int) -> Mtu:
    try:
        return Mtu.from_bytes_size(min(own_bytes, remote_bytes))
    except ValueError as error:
        raise VerbsError(f"the peer's path MTU cannot be used: {error}") from None
