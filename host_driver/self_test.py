"""A NIC sends, reads and writes to itself once, before any agent waits for it.

A software NIC compiles its kernels at their first use, which can take longer than a peer
retransmits. So they are used here first; and a NIC that cannot even reach itself is
reported by name instead of as an agent that does not answer.
"""

from __future__ import annotations

import logging

from kvlane.errors import VerbsError
from kvlane.seams import Clock
from kvlane.verbs.enums import AccessFlags, SendFlags, WcStatus, WrOpcode
from kvlane.verbs.protocols import CompletionQueue, Device, MemoryRegion, QpOptions, QueuePair
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, new_records

PAYLOAD_BYTES = 16384
"""More than two packets, so that first, middle and last ones occur."""

LIMIT_NS = 300 * 1_000_000_000
_REQUESTS = (WrOpcode.SEND, WrOpcode.RDMA_READ, WrOpcode.RDMA_WRITE)
_WAIT_MS = 5.0

_logger = logging.getLogger(__name__)


def self_test(device: Device, clock: Clock) -> bool:
    """Carry data from the device to itself; True when it has arrived. A failure is logged and
    not raised: a device that is told to lose packets may fail here and still serve."""
    memory = device.alloc(2 * PAYLOAD_BYTES)
    access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE
    region = device.register(memory, access)
    queue = device.create_cq(8)
    options = QpOptions(max_send_wr=len(_REQUESTS), max_recv_wr=1)
    near, far = device.create_qp(queue, options), device.create_qp(queue, options)
    try:
        near.connect(far.endpoint)
        far.connect(near.endpoint)
        _post(near, far, region)
        _await(device, queue, len(_REQUESTS) + 1, clock)
    except VerbsError as error:
        _logger.warning("%s cannot carry data to itself: %s", device.name, error)
        return False
    finally:
        near.close()
        far.close()
        queue.close()
        region.close()
    return True


def _post(near: QueuePair, far: QueuePair, region: MemoryRegion) -> None:
    receive = new_records(RECV_WR, 1)
    receive.local_addr = region.addr + PAYLOAD_BYTES
    receive.length = PAYLOAD_BYTES
    receive.lkey = region.lkey
    far.post_recv(receive)
    requests = new_records(SEND_WR, len(_REQUESTS))
    requests.opcode = _REQUESTS
    requests.send_flags = SendFlags.SIGNALED
    requests.local_addr = region.addr
    requests.length = PAYLOAD_BYTES
    requests.lkey = region.lkey
    requests.remote_addr = region.addr + PAYLOAD_BYTES
    requests.rkey = region.rkey
    near.post_send(requests)


def _await(device: Device, queue: CompletionQueue, count: int, clock: Clock) -> None:
    """Drive the device until ``count`` completions came; ``VerbsError`` for a bad one."""
    deadline_ns = clock() + LIMIT_NS
    completions = new_records(WC, count)
    while count and clock() < deadline_ns:
        worked = device.progress()
        polled = queue.poll(completions)
        count -= polled
        for status in completions.status[:polled]:
            if status != WcStatus.SUCCESS:
                raise VerbsError(f"a request ended with status {int(status)}")
        if not worked and not polled:
            device.wait(_WAIT_MS)
    if count:
        raise VerbsError("requests did not end in time")
