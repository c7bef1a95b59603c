"""Waking and sleeping without a wake-up that is lost, and without the interpreter's lock.

Who sleeps says so in its board, then looks for work once more, then polls. Who has work for it
publishes that, then looks at the word. With a full fence between on both sides one sees the
other. A bell is a datagram socket: sending to it never blocks, whatever its owner does. It is rung
once for each sleep, so that what is unread at one sleeper takes no room from bells for others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from emulator.driving._sleep_kernels import poll_descriptors, ring, silence, watch
from emulator.pcie.layout import BOARD_SLEEPING, SLEEPING_BITS, News, Sleeping, peer_at
from kvlane._clock_kernels import SCRATCH_WORDS, monotonic_ns
from kvlane.atomics import full_fence, load_acquire, store_release
from kvlane.jit import external, kernel

_POLLED = 4
_ATTEND, _BELL, _KICK = 1, 2, 4
"""The first of them, as bits."""
RUNG = _BELL | _KICK
"""What others may have made readable."""
_STATE_MASK = (1 << SLEEPING_BITS) - 1
_AWAKE = int(Sleeping.AWAKE)
_FOR_ANYTHING = int(Sleeping.FOR_ANYTHING)
_FOR_MESSAGES = int(Sleeping.FOR_MESSAGES)
_MESSAGE = int(News.MESSAGE)
_DONTWAIT = 0x40
_NOSIGNAL = 0x4000
_DRAIN_LIMIT = 64
_CLOCK_SCRATCH = 160
"""Offset in the device's scratch."""

_sendto = external(
    "sendto",
    types.int64(types.int32, types.int64, types.int64, types.int32, types.int64, types.uint32),
)
_recv = external("recv", types.int64(types.int32, types.int64, types.int64, types.int32))
_epoll_wait = external(
    "epoll_wait", types.int32(types.int32, types.int64, types.int32, types.int32)
)


@kernel
def notify(context: Any, qp: Any) -> None:
    """Wake the peer of a queue pair, should it sleep, for what was written to a channel."""
    news = qp.news
    if news == 0:
        return
    qp.news = 0
    peer = peer_at(context.peers, qp.peer)
    full_fence()
    word = load_acquire(peer.board + BOARD_SLEEPING)
    sleeping = word & _STATE_MASK
    is_wanted = sleeping == _FOR_ANYTHING or (sleeping != _AWAKE and news & _MESSAGE)
    if is_wanted and not _ring_for(context, peer, word >> SLEEPING_BITS):
        qp.news = news  # with the next news, at the latest


@kernel
def _ring_for(context: Any, peer: Any, sleep_number: int) -> bool:
    """Ring, unless it was done for this sleep: the bell stays readable until it ends. False when
    there is no room for it."""
    if peer.rung_for == sleep_number:
        return True
    sent = _sendto(
        np.int32(context.bell_fd),
        context.scratch,
        1,
        np.int32(_DONTWAIT | _NOSIGNAL),
        peer.bell_address,
        np.uint32(peer.bell_address_bytes),
    )
    if sent != 1:
        return False
    context.bells_rung += 1
    peer.rung_for = sleep_number
    return True


@kernel
def kick(context: Any) -> None:
    """Wake the sleepers of this process, should there be any."""
    if context.sleepers != 0:
        ring(context.kick_fd, context.scratch + 64)


@kernel
def begin_sleep(context: Any, patient: bool) -> None:
    """Say that one more sleeps, and what for; look for work after this."""
    alone = context.sleepers == 0
    wish = _FOR_MESSAGES if patient and alone else _FOR_ANYTHING
    if alone:
        context.sleep_number += 1
    if alone or not patient:
        word = context.sleep_number << SLEEPING_BITS | wish
        store_release(context.board + BOARD_SLEEPING, word)
    context.sleepers += 1
    full_fence()


@kernel
def end_sleep(context: Any, readable: int) -> None:
    """One less sleeps; the last one silences what was ``readable``, as ``doze`` had it.

    What is not silenced wakes once more for nothing; nothing is lost by that.
    """
    context.sleepers -= 1
    if readable & _ATTEND or context.backlog_due_ns != 0 or context.remarks:
        context.attend_due = 1
    if context.sleepers != 0:
        return
    store_release(context.board + BOARD_SLEEPING, _AWAKE)
    into = context.scratch + 72
    if readable & _BELL:
        for _ in range(_DRAIN_LIMIT):
            if _recv(np.int32(context.bell_fd), into, 8, np.int32(_DONTWAIT)) < 0:
                break
    if readable & _KICK:
        silence(context.kick_fd, into)


@kernel
def doze(context: Any, timeout_ns: int, wake_fd: int) -> int:
    """Poll until something is readable or time is up; a bit for each of what is.

    Other threads may have the device meanwhile.
    """
    descriptors = np.empty(_POLLED, np.int64)
    watch(descriptors, 0, context.attend_fd)
    watch(descriptors, 1, context.bell_fd)
    watch(descriptors, 2, context.kick_fd)
    watch(descriptors, 3, wake_fd)
    limit_ns = max(timeout_ns, 0)
    due_ns = context.backlog_due_ns
    if due_ns != 0:
        scratch = np.empty(SCRATCH_WORDS, np.int64)  # the device's own is used by who has it
        limit_ns = min(limit_ns, max(due_ns - monotonic_ns(scratch.ctypes.data), 0))
    return poll_descriptors(descriptors, limit_ns)


@kernel
def is_backlog_due(context: Any) -> bool:
    """Whether it is time to try again what waits for room in a peer's socket."""
    due_ns = context.backlog_due_ns
    return bool(due_ns != 0 and monotonic_ns(context.scratch + _CLOCK_SCRATCH) >= due_ns)


@kernel
def is_attention_due(context: Any) -> bool:
    """Whether the control socket, or the death of a peer, waits to be attended to."""
    return bool(_epoll_wait(np.int32(context.attend_fd), context.scratch + 128, 1, 0) > 0)
