"""Work requests as pyverbs posts them: a batch is one linked list and one call.

A request of pyverbs costs a microsecond to make and 0.2 us to fill again, so those of the send
queue are kept. They are linked once and for all from the last to the first, since pyverbs
cannot cut a list: a batch of n takes the last n. Receives cannot be filled again in
pyverbs and are made for each batch. Neither kind frees its memory unless it is closed
(up to release 59 its destructor is misspelt), so each is closed here, once.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from kvlane.errors import VerbsError
from kvlane.hardware.binding import Binding
from kvlane.verbs.enums import SendFlags, WrOpcode
from kvlane.verbs.records import RecordArray

_MASK_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF
_REMOTE = frozenset({WrOpcode.RDMA_WRITE, WrOpcode.RDMA_WRITE_WITH_IMM, WrOpcode.RDMA_READ})
_IMMEDIATE = frozenset({WrOpcode.RDMA_WRITE_WITH_IMM, WrOpcode.SEND_WITH_IMM})
_OPCODES = _REMOTE | _IMMEDIATE | {WrOpcode.SEND}
"""What a ``SEND_WR`` record can say: the others need operands that it does not have."""

Row = tuple[int, ...]


def require_postable_sends(rows: Sequence[Row], max_message_bytes: int) -> None:
    """``VerbsError`` unless every ``SEND_WR`` row is one that a device can be given."""
    for _, opcode, flags, _, _, length, _, _, _, sum_addr in rows:
        if opcode not in _OPCODES:
            raise VerbsError(f"opcode {opcode} is none of SEND, RDMA WRITE and RDMA READ")
        if flags & SendFlags.INLINE:
            raise VerbsError("queue pairs are created without inline data; leave INLINE out")
        if sum_addr != 0:
            raise VerbsError("this device does not sum what it reads; leave sum_addr at 0")
        require_length(length, max_message_bytes)


def require_length(length: int, max_message_bytes: int) -> None:
    """``VerbsError`` unless one work request can move that many bytes."""
    if not 0 <= length <= min(max_message_bytes, _MASK_32):
        raise VerbsError(f"a work request moves 0 to {max_message_bytes} bytes, not {length}")


def rows_of(requests: RecordArray) -> list[Row]:
    """Records as tuples of Python integers, in the order of the fields."""
    rows: list[Row] = requests.tolist()
    return rows


class SendRequests:
    """The send requests of one device, filled anew for each batch."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._elements: list[Any] = []
        self._requests: list[Any] = []
        """Each is linked to the one before it; the first ends every list."""

    def fill(self, rows: Sequence[Row], tickets: Sequence[int]) -> Any:
        """The head of a list that holds a batch of ``SEND_WR`` rows; valid until the next."""
        count = len(rows)
        while len(self._requests) < count:
            self._grow()
        for slot, row, ticket in zip(range(count - 1, -1, -1), rows, tickets, strict=True):
            self._fill(slot, row, ticket)
        return self._requests[count - 1]

    def _fill(self, slot: int, row: Row, ticket: int) -> None:
        _, opcode, flags, immediate, local_addr, length, lkey, remote_addr, rkey, _ = row
        element, request = self._elements[slot], self._requests[slot]
        element.addr = local_addr & _MASK_64
        element.length = length
        element.lkey = lkey & _MASK_32
        request.sg_list = element
        request.wr_id = ticket
        request.opcode = opcode
        request.send_flags = flags
        if opcode in _IMMEDIATE:
            # The field holds the four bytes as they go on the wire.
            request.imm_data = socket.htonl(immediate & _MASK_32)
        if opcode in _REMOTE:
            request.set_wr_rdma(rkey & _MASK_32, remote_addr & _MASK_64)

    def _grow(self) -> None:
        wr = self._binding.wr
        element = wr.SGE(0, 0, 0)
        request = wr.SendWR(num_sge=1, sg=[element])
        if self._requests:
            request.next_wr = self._requests[-1]
        self._elements.append(element)
        self._requests.append(request)

    def close(self) -> None:
        """Free the elements. The requests point to them and must not free them again; what
        stays is the 16 bytes that each had before it was given the element."""
        for element in self._elements:
            element.close()
        self._elements.clear()
        self._requests.clear()


def post_receives(binding: Binding, qp: Any, rows: Sequence[Row], tickets: Sequence[int]) -> None:
    """Post a batch of ``RECV_WR`` rows; errors are those of pyverbs."""
    made: list[Any] = []
    element = binding.wr.SGE(0, 0, 0)
    try:
        head = None
        for (_, local_addr, length, lkey), ticket in zip(
            reversed(rows), reversed(tickets), strict=True
        ):
            element.addr = local_addr & _MASK_64
            element.length = length
            element.lkey = lkey & _MASK_32
            head = binding.wr.RecvWR(wr_id=ticket, num_sge=1, sg=[element], next_wr=head)
            made.append(head)
        qp.post_recv(head)
    finally:
        for request in made:
            request.close()
        element.close()
