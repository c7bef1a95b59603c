"""Queue pairs meeting their peers, and parting from them."""

from __future__ import annotations

import logging
import os
import select
import time
from collections import Counter
from dataclasses import dataclass

from emulator.driving._sleep_kernels import load_word
from emulator.pcie import _entry_kernels as kernels
from emulator.pcie.control_socket import ControlSocket, Kind, Message, Received, is_local
from emulator.pcie.layout import CHANNEL_ACTIVE, CHANNEL_BYTES
from emulator.pcie.mapping import Mapping, map_of_peer
from emulator.pcie.peers import Introduction, Peer, Peers, Reach
from emulator.pcie.queues import PcieQp
from emulator.pcie.regions import Allocation, Allocations, Board
from emulator.pcie.state import State, index_of
from kvlane.errors import CapacityError, ProtocolError, VerbsError
from kvlane.verbs.enums import QpState
from kvlane.verbs.protocols import QpEndpoint

_log = logging.getLogger(__name__)
_MAX_OFFERS = 4
"""Peers that may offer themselves to one queue pair before it says whom it wants."""
_QUIET_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Offer:
    """The channel of a peer's queue pair, before it is used."""

    peer: Peer
    channel: Mapping


class Connections:
    """The control socket of a device and what came of its messages."""

    def __init__(self, state: State, board: Board, allocations: Allocations, reach: Reach) -> None:
        self._state = state
        self._board = board
        self._allocations = allocations
        self._socket = ControlSocket()
        self.gid = self._socket.gid
        self._epoll = select.epoll()
        self._epoll.register(self._socket.fileno(), select.EPOLLIN)
        self._peers = Peers(reach)
        self.qps: dict[int, PcieQp] = {}
        """Open queue pairs by index."""
        self._offers: dict[int, dict[tuple[bytes, int], Offer]] = {}
        self._destinations: Counter[bytes] = Counter()
        """Devices that queue pairs have been connected with: they learn of shared memory."""
        self._quarantine: list[tuple[Peer, object]] = []
        """Memory that a peer may still write to."""
        state.context.peers = self._peers.table.ctypes.data
        state.context.attend_fd = self._epoll.fileno()
        state.context.bell_fd = self._socket.bell_fd

    # Meeting

    def connect(self, qp: PcieQp, remote: QpEndpoint) -> None:
        """Send the peer what it needs, and use what it has sent, if it has."""
        if not is_local(remote.gid):
            raise VerbsError(
                f"the peer's GID {remote.gid.hex()} is none of the pcie link: both ends need "
                f"link: pcie"
            )
        hello = Message(Kind.CONNECT, qp.handle, remote.qp_num, self._board.address)
        self._send(remote.gid, hello, (qp.channel.fd, self._board.fd))
        qp.remote = remote
        self._destinations[remote.gid] += 1
        for allocation in self._allocations.announced():
            self._tell_map(remote.gid, allocation)
        entry = self._state.qps[index_of(qp.handle)]
        entry.state = QpState.RTS
        entry.remote_number = remote.qp_num
        self._state.context.unattached += 1
        self._take_offer(qp)

    def announce(self, allocation: Allocation) -> None:
        """Tell all peers of memory that they may reach from now on."""
        if allocation.announced:
            return
        allocation.announced = True
        for gid in self._destinations:
            self._tell_map(gid, allocation)

    def sweep(self) -> None:
        """Free memory that was collected, here and with the peers."""
        if self._quarantine:
            self._end_quarantine()
        for map_id in self._allocations.sweep():
            for gid in self._destinations:
                self._try_send(gid, Message(Kind.UNMAP, map_id))

    def _end_quarantine(self) -> None:
        """Let go of memory whose peers are dead by now."""
        held, self._quarantine = self._quarantine, []
        for peer, buffer in held:
            if peer.is_dead():
                self._leave(peer)
            else:
                self._quarantine.append((peer, buffer))

    def _tell_map(self, gid: bytes, allocation: Allocation) -> None:
        self._try_send(gid, Message(Kind.MAP, allocation.map_id), (allocation.shared.fd,))

    def _try_send(self, gid: bytes, message: Message, fds: tuple[int, ...] = ()) -> None:
        """To a peer that may be gone: its death is seen elsewhere."""
        try:
            self._send(gid, message, fds)
        except VerbsError as error:
            _log.info("%s", error)

    def _send(self, gid: bytes, message: Message, fds: tuple[int, ...]) -> None:
        self._socket.send(gid, message, fds)
        self._state.context.backlog = int(self._socket.has_backlog)

    # Attending

    def attend(self) -> bool:
        """Handle what messages and deaths there are; whether there were any."""
        self.sweep()
        self._socket.flush()
        if self._state.context.remarks:
            self._state.context.remarks = 0
            self._peers.remark()
        worked = False
        for received in self._socket.receive():
            worked = True
            try:
                self._handle(received)
            except (ProtocolError, CapacityError) as error:
                _log.warning("process %d: %s", received.pid, error)
            finally:
                for fd in received.fds:
                    os.close(fd)
        for fd, _ in self._epoll.poll(0):
            peer = self._peers.by_pidfd(fd)
            if peer is not None:
                worked = True
                self._give_up(peer)
        self._state.context.backlog = int(self._socket.has_backlog)
        return worked

    def _handle(self, received: Received) -> None:
        message = received.message
        if message.kind is Kind.CONNECT:
            self._take_introduction(received)
            return
        peer = self._peers.find(received.gid)
        if peer is None or peer.pid != received.pid:
            return
        if message.kind is Kind.UNMAP:
            peer.unmap(message.first)
        elif received.fds:
            peer.map(message.first, received.fds[0])

    def _take_introduction(self, received: Received) -> None:
        theirs, ours = received.message.first, received.message.second
        qp = self.qps.get(index_of(ours))
        if qp is None or qp.handle != ours or qp.outbound is not None:
            return
        offers = self._offers.setdefault(ours, {})
        if len(received.fds) != 2 or len(offers) >= _MAX_OFFERS or (received.gid, theirs) in offers:
            return
        who = Introduction(received.gid, received.pid, received.message.third)
        channel = map_of_peer(received.fds[0], CHANNEL_BYTES)
        try:
            peer, is_new = self._peers.meet(who, received.fds[1])
        except BaseException:
            channel.close()
            raise
        if is_new:
            self._epoll.register(peer.pidfd, select.EPOLLIN)
        peer.users += 1
        offers[received.gid, theirs] = Offer(peer, channel)
        self._take_offer(qp)

    def _take_offer(self, qp: PcieQp) -> None:
        """Attach a queue pair to the peer that it was connected with, if that is there."""
        if qp.remote is None:
            return
        offers = self._offers.get(qp.handle, {})
        offer = offers.pop((qp.remote.gid, qp.remote.qp_num), None)
        if offer is None:
            return
        self._drop_offers(qp)
        qp.peer, qp.outbound = offer.peer, offer.channel
        entry = self._state.qps[index_of(qp.handle)]
        entry.peer = offer.peer.index
        entry.outbound = offer.channel.address
        entry.attached = 1
        self._state.context.unattached -= 1

    def _drop_offers(self, qp: PcieQp) -> None:
        for offer in self._offers.pop(qp.handle, {}).values():
            offer.channel.close()
            self._leave(offer.peer)

    # Parting

    def disconnect(self, qp: PcieQp) -> None:
        """Nobody touches memory by this queue pair after this."""
        del self.qps[index_of(qp.handle)]
        qp.tell_closed()
        self._drop_offers(qp)
        if qp.remote is not None:
            self._destinations[qp.remote.gid] -= 1
            self._destinations += Counter()
            if qp.outbound is None:
                self._state.context.unattached -= 1
        if qp.outbound is not None:
            kernels.notify(self._state.address, index_of(qp.handle))
            self._await_quiet_qp(qp)
            qp.outbound.close()
            qp.outbound = None
        if qp.peer is not None:
            self._leave(qp.peer)
            qp.peer = None

    def await_quiet(self, buffer: object) -> None:
        """Wait until nobody copies by a key that was revoked.

        A peer that stays in the middle of a copy is stopped, or means harm. It is given up;
        the memory is kept for as long as its process lives, so that nobody else gets it.
        """
        for qp in list(self.qps.values()):
            if qp.outbound is not None and not self._await_quiet_qp(qp):
                assert qp.peer is not None
                qp.peer.users += 1
                self._quarantine.append((qp.peer, buffer))

    def _await_quiet_qp(self, qp: PcieQp) -> bool:
        """Wait until the peer's present copy ends; false when it does not."""
        word = qp.channel.mapping.address + CHANNEL_ACTIVE
        first = load_word(word)
        deadline_s = time.monotonic() + _QUIET_TIMEOUT_S
        while first & 1 and load_word(word) == first:
            assert qp.peer is not None
            if qp.peer.is_dead():
                return True
            if qp.peer.given_up:
                return False
            if time.monotonic() > deadline_s:
                _log.warning(
                    "process %d has stopped in the middle of a copy: it is given up", qp.peer.pid
                )
                self._give_up(qp.peer)
                return False
            time.sleep(0)
        return True

    def _give_up(self, peer: Peer) -> None:
        """The peer's process has died, or is as good as dead."""
        for qp in list(self.qps.values()):
            if qp.peer is peer:
                kernels.give_up_peer(self._state.address, index_of(qp.handle))
        if not peer.given_up:
            peer.given_up = True
            self._epoll.unregister(peer.pidfd)

    def _leave(self, peer: Peer) -> None:
        peer.users -= 1
        if peer.users == 0:
            if not peer.given_up:
                self._epoll.unregister(peer.pidfd)
            self._peers.forget(peer)

    def abandon(self) -> None:
        """In a child of the device's process: close this end of everything, and tell nobody."""
        for qp in self.qps.values():
            qp.abandon()
        self.qps.clear()
        self.close()

    def close(self) -> None:
        """Give names and descriptors back."""
        self._peers.close()
        self._socket.close()
        self._epoll.close()
