"""The verbs that agent and driver use of a NIC, as structural types.

Every method may be called from any thread; an implementation serialises them. None
blocks except ``Device.wait``. Errors are ``kvlane.errors.VerbsError``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from kvlane.errors import VerbsError
from kvlane.verbs.enums import AccessFlags, QpState
from kvlane.verbs.records import RecordArray

if TYPE_CHECKING:
    from kvlane.verbs.calls import VerbCalls


@dataclass(frozen=True, slots=True)
class QpEndpoint:
    """What one side of a connection tells the other about its queue pair."""

    gid: bytes
    """16 bytes; an IPv4 address is mapped, ``::ffff:a.b.c.d``."""
    udp_port: int
    """Where the NIC receives RoCEv2 datagrams; 4791 on hardware."""
    qp_num: int
    psn: int
    """The first PSN this side will send (24 bits)."""
    mtu_bytes: int
    """The largest path MTU this side can take; the smaller of both is used."""


_OPTION_RANGES: dict[str, tuple[int, int]] = {
    "max_send_wr": (1, 1 << 15),
    "max_recv_wr": (1, 1 << 15),
    "max_rd_atomic": (1, 64),
    "ack_timeout_code": (0, 31),
    "retry_count": (0, 7),
    "rnr_retry_count": (0, 7),
    "min_rnr_timer_code": (0, 31),
}


@dataclass(frozen=True, slots=True)
class QpOptions:
    """Depths and timers of an RC queue pair."""

    max_send_wr: int = 256
    max_recv_wr: int = 128
    max_rd_atomic: int = 16
    """RDMA READs this side may have outstanding, and answer at once."""
    ack_timeout_code: int = 15
    """Local ACK timeout is 4.096 us x 2^code (IBTA 1.7 section 9.9.2.1.1): 15 is 134 ms."""
    retry_count: int = 7
    rnr_retry_count: int = 7
    """7 means for ever (IBTA 1.7 section 9.9.2.1.1)."""
    min_rnr_timer_code: int = 12

    def __post_init__(self) -> None:
        for name, (low, high) in _OPTION_RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise VerbsError(f"{name} must be {low} to {high}, not {getattr(self, name)}")


class MemoryRegion(Protocol):
    """Registered memory; the buffer it covers is kept alive by it."""

    @property
    def addr(self) -> int:
        """Address of the first byte."""

    @property
    def length(self) -> int:
        """Bytes."""

    @property
    def lkey(self) -> int:
        """Key for local use in work requests."""

    @property
    def rkey(self) -> int:
        """Key to hand to a peer for RDMA READ and WRITE."""

    def close(self) -> None:
        """Deregister: no access by either key after this returns."""


class CompletionQueue(Protocol):
    """Where completions arrive."""

    @property
    def handle(self) -> int:
        """What ``VerbCalls`` of the device call it."""

    def poll(self, out: RecordArray) -> int:
        """Move up to ``len(out)`` completions into ``out`` (dtype ``WC``); return how many."""

    def close(self) -> None:
        """Destroy the queue; its queue pairs are closed first."""


class QueuePair(Protocol):
    """A reliable connected queue pair."""

    @property
    def handle(self) -> int:
        """What ``VerbCalls`` of the device call it."""

    @property
    def endpoint(self) -> QpEndpoint:
        """What the peer must know to connect."""

    @property
    def state(self) -> QpState:
        """The state now; ERR after a fatal completion."""

    def connect(self, remote: QpEndpoint) -> None:
        """INIT to RTR to RTS, with the peer's number, address and PSN."""

    def post_recv(self, requests: RecordArray) -> None:
        """Post ``RECV_WR`` records; ``QueueFullError`` posts none of them."""

    def post_send(self, requests: RecordArray) -> None:
        """Post ``SEND_WR`` records in order; ``QueueFullError`` posts none of them."""

    def close(self) -> None:
        """Destroy: outstanding requests are flushed, no late write can land after this."""


class Device(Protocol):
    """An opened NIC port with one protection domain."""

    @property
    def name(self) -> str:
        """For people: kind, address."""

    @property
    def max_message_bytes(self) -> int:
        """The longest message one work request may move."""

    def alloc(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-aligned zeroed memory that this device reaches best."""

    def register(self, buffer: NDArray[np.uint8], access: AccessFlags) -> MemoryRegion:
        """Register a contiguous array, exactly its length (error where a limit forbids it)."""

    def create_cq(self, depth: int) -> CompletionQueue:
        """A completion queue of at least ``depth`` entries."""

    def create_qp(self, cq: CompletionQueue, options: QpOptions) -> QueuePair:
        """An RC queue pair in INIT, both directions completing on ``cq``."""

    def progress(self) -> bool:
        """Do pending work in this thread (software NICs); True when there was any.

        A NIC of hardware returns False.
        """

    def wait(self, timeout_ms: float, wake_fd: int = -1) -> None:
        """Sleep until there may be completions or work, ``wake_fd`` is readable, or time is up."""

    @property
    def calls(self) -> VerbCalls:
        """The same verbs for compiled loops, which hold the device meanwhile (``hold``)."""

    def hold(self) -> AbstractContextManager[None]:
        """The device for this thread alone; others who want it are heard through ``wanted``."""

    def take_fault(self) -> BaseException | None:
        """What a function of ``calls`` failed with, since the last call of this."""

    def counters(self) -> dict[str, int]:
        """Counters of the port by the names that mlx5 gives them, where it has one."""

    def close(self) -> None:
        """Release everything that was created on this device."""
