"""Queue pairs meeting their peers, and parting from them."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from emulator.pcie import _entry_kernels as kernels
from emulator.pcie.backlog import File
from emulator.pcie.control_socket import ControlSocket, Received
from emulator.pcie.layout import CHANNEL_BYTES, MAX_OFFERS, MESSAGES_PER_TURN
from emulator.pcie.mapping import Mapping, map_of_peer
from emulator.pcie.messages import Kind, Message, Refusal, is_local, refusal_text
from emulator.pcie.peers import Introduction, Peer, Peers, Reach
from emulator.pcie.queues import PcieQp
from emulator.pcie.quiet import QUIET_TIMEOUT_S, Copy, poll_by_turns
from emulator.pcie.regions import Allocation, Allocations, Board
from emulator.pcie.state import State, index_of
from kvlane.errors import CapacityError, ProtocolError, VerbsError
from kvlane.verbs.enums import QpState
from kvlane.verbs.protocols import QpEndpoint

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """The channel of a peer's queue pair, before it is used."""

    peer: Peer
    channel: Mapping


class RefusedError(Exception):
    """An introduction is not taken; its sender is told."""

    def __init__(self, refusal: Refusal, detail: str = "") -> None:
        self.refusal = refusal
        super().__init__(detail or refusal_text(refusal))


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
        self.parting: list[PcieQp] = []
        """Those that are closed, and whose peer may still copy by them."""
        self._waits = 0
        """Threads that wait for copies to end."""
        self._offers: dict[int, dict[tuple[bytes, int], Offer]] = {}
        self._told: dict[bytes, list[PcieQp]] = {}
        """Devices that learn of shared memory, and the queue pairs that are connected with them."""
        self._refused: set[Refusal] = set()
        """What people were told of."""
        self._has_lost_memory = False
        self._quarantine: list[tuple[Peer, object]] = []
        """Memory that a peer may still write to."""
        state.context.peers = self._peers.table.ctypes.data
        state.context.attend_fd = self._epoll.fileno()
        state.context.bell_fd = self._socket.bell_fd

    @property
    def is_in_use(self) -> bool:
        """Whether a thread still waits for copies to end, and needs peers and channels for it."""
        return self._waits > 0

    # Meeting

    def connect(self, qp: PcieQp, remote: QpEndpoint) -> None:
        """Send the peer what it needs, and use what it has sent, if it has."""
        if not is_local(remote.gid):
            raise VerbsError(
                f"the peer's GID {remote.gid.hex()} is none of the pcie link: both ends need "
                f"link: pcie"
            )
        hello = Message(Kind.CONNECT, qp.handle, remote.qp_num, self._board.address)
        self._send(remote.gid, hello, (qp.channel, self._board))
        qp.remote = remote
        qp.awaits_peer = True
        self._state.context.unattached += 1
        entry = self._state.qps[index_of(qp.handle)]
        entry.state = QpState.RTS
        entry.remote_number = remote.qp_num
        self._told.setdefault(remote.gid, []).append(qp)
        for allocation in self._allocations.announced():
            self._tell_map(remote.gid, allocation)
            if remote.gid not in self._told:
                return  # it does not read what it is told: it was left, and this queue pair with it
        self._take_offer(qp)

    def announce(self, allocation: Allocation) -> None:
        """Tell all peers of memory that they may reach from now on."""
        if allocation.announced:
            return
        allocation.announced = True
        for gid in list(self._told):
            self._tell_map(gid, allocation)

    def sweep(self) -> None:
        """Free memory that was collected, here and with the peers."""
        if self._quarantine:
            self._end_quarantine()
        for map_id in self._allocations.sweep():
            for gid in list(self._told):
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
        self._try_send(gid, Message(Kind.MAP, allocation.map_id), (allocation.shared,))

    def _try_send(self, gid: bytes, message: Message, files: tuple[File, ...] = ()) -> None:
        """To a peer that may be gone, or stuck: what that means for others is seen to here."""
        try:
            self._send(gid, message, files)
        except VerbsError as error:
            _log.info("%s", error)
            self._end_waiting(gid)
        except CapacityError as error:
            _log.info("not sent: %s", error)

    def _send(self, gid: bytes, message: Message, files: tuple[File, ...]) -> None:
        try:
            self._socket.send(gid, message, files)
        except CapacityError as error:
            # Whoever misses one message is not to be taken for somebody who has them all.
            self._end_all(gid, str(error))
            raise
        finally:
            self._state.context.backlog_due_ns = self._socket.backlog_due_ns
            if self._state.context.backlog_due_ns:
                kernels.kick_sleepers(self._state.address)  # who sleeps must wake to try again

    # Attending

    def attend(self) -> bool:
        """Handle what messages and deaths there are; whether there were any."""
        self.sweep()
        for gid in self._socket.flush():
            self._end_waiting(gid)
        self._state.context.backlog_due_ns = self._socket.backlog_due_ns
        if self._state.context.remarks:
            self._state.context.remarks = 0
            self._peers.remark()
        came = 0
        for received in self._socket.receive(MESSAGES_PER_TURN):
            came += 1
            try:
                self._handle(received)
            finally:
                received.close()
        if came == MESSAGES_PER_TURN:
            self._state.context.attend_due = 1
        self._state.context.messages_dropped = self._socket.dropped
        return self._attend_to_deaths() or came > 0

    def _attend_to_deaths(self) -> bool:
        worked = False
        for fd, _ in self._epoll.poll(0):
            peer = self._peers.by_pidfd(fd)
            if peer is not None:
                worked = True
                self._give_up(peer)
        return worked

    def _handle(self, received: Received) -> None:
        message = received.message
        if message.kind is Kind.CONNECT:
            try:
                self._take_introduction(received)
            except RefusedError as error:
                self._refuse(received, error)
            return
        if not received.is_trusted:
            self._socket.dropped += 1
            return
        if message.kind is Kind.REFUSE:
            self._take_refusal(received)
            return
        peer = self._peers.find(received.gid)
        if peer is None or peer.pid != received.pid:
            return
        if message.kind is Kind.UNMAP:
            peer.unmap(message.first)
        elif received.fds:
            peer.map(message.first, received.fds[0])
        else:
            self._note_lost_memory(received)

    def _note_lost_memory(self, received: Received) -> None:
        self._socket.dropped += 1
        if not self._has_lost_memory:
            self._has_lost_memory = True
            _log.warning(
                "shared memory of process %d takes the slow way: %s; further cases are only "
                "counted (messages_dropped)",
                received.pid,
                refusal_text(Refusal.NO_DESCRIPTORS),
            )

    # Being met

    def _take_introduction(self, received: Received) -> None:
        theirs, ours = received.message.first, received.message.second
        if not received.is_trusted:
            raise RefusedError(Refusal.OTHER_USER)
        qp = self.qps.get(index_of(ours))
        if qp is None or qp.handle != ours:
            raise RefusedError(Refusal.NO_SUCH_QP)
        offers = self._offers.setdefault(ours, {})
        if (received.gid, theirs) in offers or qp.is_attached_to(received.gid, theirs):
            return  # it was heard the first time
        if not qp.may_take(received.gid, theirs):
            raise RefusedError(Refusal.TAKEN)
        if len(offers) >= MAX_OFFERS:
            raise RefusedError(Refusal.TOO_MANY_OFFERS)
        if received.has_lost_fds:
            raise RefusedError(Refusal.NO_DESCRIPTORS)
        if len(received.fds) != 2:
            raise RefusedError(Refusal.BAD_MEMORY)
        if received.pid <= 0 and received.pidfd < 0:
            raise RefusedError(Refusal.UNSEEN)
        try:
            offers[received.gid, theirs] = self._offer(received)
        except ProtocolError as error:
            raise RefusedError(Refusal.BAD_MEMORY, str(error)) from error
        except (CapacityError, OSError) as error:
            raise RefusedError(Refusal.NO_CAPACITY, str(error)) from error
        self._take_offer(qp)

    def _offer(self, received: Received) -> Offer:
        """Map what came with an introduction; nothing of it stays when that fails."""
        message = received.message
        who = Introduction(received.gid, received.pid, message.third, received.pidfd)
        with ExitStack() as undo:
            channel = map_of_peer(received.fds[0], CHANNEL_BYTES)
            undo.callback(channel.close)
            peer, is_new = self._peers.meet(who, received.fds[1])
            if is_new:
                undo.callback(self._peers.forget, peer)
                self._epoll.register(peer.pidfd, select.EPOLLIN)
            elif peer.given_up:
                raise RefusedError(Refusal.GIVEN_UP)
            peer.users += 1
            undo.pop_all()
        return Offer(peer, channel)

    def _refuse(self, received: Received, error: RefusedError) -> None:
        """Tell the sender of an introduction, and people if it is the first of its kind."""
        self._state.context.offers_refused += 1
        if error.refusal not in self._refused:
            self._refused.add(error.refusal)
            _log.warning(
                "process %d is refused: %s; further ones that are refused for that are only "
                "counted (offers_refused)",
                received.pid,
                error,
            )
        theirs, ours = received.message.first, received.message.second
        if received.is_trusted:
            self._tell_refusal(received.gid, theirs, ours, error.refusal)
        else:
            self._socket.try_once(received.gid, _refusal(theirs, ours, error.refusal))

    def _tell_refusal(self, gid: bytes, theirs: int, ours: int, refusal: Refusal) -> None:
        self._try_send(gid, _refusal(theirs, ours, refusal))

    def _take_refusal(self, received: Received) -> None:
        message = received.message
        qp = self.qps.get(index_of(message.first))
        if qp is None or qp.handle != message.first or not qp.awaits(received.gid, message.second):
            return
        self._state.context.connects_refused += 1
        _log.warning(
            "queue pair %#x cannot be connected with process %d: %s",
            qp.handle,
            received.pid,
            refusal_text(message.third),
        )
        self._fail(qp)

    def _take_offer(self, qp: PcieQp) -> None:
        """Attach a queue pair to the peer that it was connected with, if that is there."""
        if qp.remote is None or not qp.awaits_peer:
            return
        offer = self._offers.get(qp.handle, {}).pop((qp.remote.gid, qp.remote.qp_num), None)
        self._drop_offers(qp, Refusal.TAKEN)
        if offer is None:
            return
        qp.peer, qp.outbound = offer.peer, offer.channel
        entry = self._state.qps[index_of(qp.handle)]
        entry.peer = offer.peer.index
        entry.outbound = offer.channel.address
        entry.attached = 1
        self._stop_waiting(qp)

    def _drop_offers(self, qp: PcieQp, refusal: Refusal) -> None:
        """Those who offered themselves in vain are told."""
        for (gid, theirs), offer in self._offers.pop(qp.handle, {}).items():
            offer.channel.close()
            self._leave(offer.peer)
            self._state.context.offers_refused += 1
            self._tell_refusal(gid, theirs, qp.handle, refusal)

    def _stop_waiting(self, qp: PcieQp) -> None:
        if qp.awaits_peer:
            qp.awaits_peer = False
            self._state.context.unattached -= 1

    # Parting

    def _fail(self, qp: PcieQp) -> None:
        kernels.give_up_peer(self._state.address, index_of(qp.handle))
        self._stop_waiting(qp)

    def _end_waiting(self, gid: bytes) -> None:
        """A device is no more. Those who are attached to it learn of that otherwise, and in the
        right order with what it has sent; nobody else will."""
        for qp in list(self._told.get(gid, ())):
            if qp.awaits_peer:
                _log.warning("queue pair %#x: its peer has closed before it answered", qp.handle)
                self._fail(qp)

    def _end_all(self, gid: bytes, reason: str) -> None:
        """A device that cannot be told things is left, whatever state it is in."""
        self._socket.drop_backlog(gid)
        ended = self._told.pop(gid, [])
        for qp in ended:
            self._fail(qp)
        peer = self._peers.find(gid)
        if peer is not None:
            self._give_up(peer)
        if ended:
            _log.error("%s; its queue pairs end (%d)", reason, len(ended))

    def disconnect(self, qp: PcieQp) -> None:
        """The first half of parting: whoever looks at a queue pair from now on finds it closed.

        ``part`` is the second, after the present copies.
        """
        del self.qps[index_of(qp.handle)]
        qp.tell_closed()
        if qp.outbound is not None:
            kernels.notify(self._state.address, index_of(qp.handle))
        self._drop_offers(qp, Refusal.NO_SUCH_QP)
        self._stop_waiting(qp)
        if qp.remote is not None:
            self._forget_told(qp, qp.remote.gid)
        self.parting.append(qp)

    def _forget_told(self, qp: PcieQp, gid: bytes) -> None:
        told = self._told.get(gid, [])
        if qp in told:
            told.remove(qp)
            if not told:
                del self._told[gid]

    def part(self, qp: PcieQp) -> None:
        """Let go of what a queue pair shares with its peer."""
        if qp not in self.parting:
            return
        self.parting.remove(qp)
        if qp.outbound is not None:
            qp.outbound.close()
            qp.outbound = None
        if qp.peer is not None:
            self._leave(qp.peer)
            qp.peer = None
        qp.channel.close()

    def await_quiet(
        self, lock: AbstractContextManager[None], buffer: object, only: PcieQp | None = None
    ) -> None:
        """Wait until nobody copies by a key that was revoked, or by one queue pair.

        The lock is free meanwhile. A peer that stays in the middle of a copy is stopped, or means
        harm. It is given up; ``buffer`` is kept for as long as its process lives, so that nobody
        else gets it.
        """
        with lock:
            copies = self._copies(only)
            if all(copy.has_ended() for copy in copies):
                return
            self._waits += 1
            for copy in copies:
                copy.peer.users += 1
        try:
            poll_by_turns(lock, self._are_over(copies, time.monotonic() + QUIET_TIMEOUT_S))
        finally:
            with lock:
                self._waits -= 1
                for copy in copies:
                    if copy.peer.given_up and buffer is not None and not copy.has_ended():
                        self._quarantine.append((copy.peer, buffer))
                    else:
                        self._leave(copy.peer)

    def _copies(self, only: PcieQp | None) -> list[Copy]:
        qps = [*self.qps.values(), *self.parting] if only is None else [only]
        return [Copy(qp.channel, qp.peer) for qp in qps if qp.peer is not None]

    def _are_over(self, copies: list[Copy], deadline_s: float) -> Callable[[], bool]:
        """Whether each has ended or its peer is given up, which it is after the deadline."""

        def are_over() -> bool:
            late = time.monotonic() > deadline_s
            for copy in copies:
                if copy.has_ended() or copy.peer.given_up:
                    continue
                if not late:
                    return False
                _log.warning(
                    "process %d has stopped in the middle of a copy: it is given up", copy.peer.pid
                )
                self._give_up(copy.peer)
            return True

        return are_over

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
        for qp in (*self.qps.values(), *self.parting):
            qp.abandon()
        self.qps.clear()
        self.parting.clear()
        self.close()

    def close(self) -> None:
        """Give names and descriptors back."""
        self._peers.close()
        self._socket.close()
        self._epoll.close()


def _refusal(theirs: int, ours: int, refusal: Refusal) -> Message:
    return Message(Kind.REFUSE, theirs, ours, refusal)
