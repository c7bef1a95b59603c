"""Files, queues and tickets of the segment log."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.segments.direct_file import DescriptorFile, aligned_buffer, transfer_all
from dpu_agent.segments.io_queue import IoQueue
from dpu_agent.segments.layout import PAGE_BYTES
from dpu_agent.segments.requests import Completion, ItemStatus
from dpu_agent.segments.tickets import TicketDesk
from kvlane.errors import CapacityError, ConfigError, DeadlineError


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(st.integers(PAGE_BYTES, 5 * PAGE_BYTES), min_size=20, max_size=20),
)
def test_short_transfers_go_on_where_they_stopped(pages: list[int], steps: list[int]) -> None:
    """A system call that stops inside a page goes on from the page's begin."""
    buffers = [memoryview(bytes([n]) * (PAGE_BYTES * count)) for n, count in enumerate(pages, 1)]
    whole = b"".join(buffers)
    target = bytearray(len(whole))
    limits = iter(steps)

    def short(_fd: int, parts: Sequence[memoryview], offset: int) -> int:
        assert offset % PAGE_BYTES == 0
        data = b"".join(parts)[: next(limits)]
        target[offset : offset + len(data)] = data
        return len(data)

    transfer_all(short, -1, buffers, 0)
    assert target == whole


def test_a_transfer_that_does_not_move_is_an_error() -> None:
    with pytest.raises(OSError, match="the file ends"):
        transfer_all(lambda *_: 0, -1, [memoryview(bytes(PAGE_BYTES))], 0)
    with pytest.raises(OSError, match="less than a page"):
        transfer_all(lambda *_: 100, -1, [memoryview(bytes(PAGE_BYTES))], 0)


def test_a_file_reads_what_it_wrote_and_no_further(tmp_path: Path) -> None:
    file = DescriptorFile(os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT))
    page = aligned_buffer(PAGE_BYTES)
    page[:3] = b"abc"
    file.write([page, page], 0)
    file.sync()
    assert file.nbytes() == 2 * PAGE_BYTES
    back = aligned_buffer(PAGE_BYTES)
    file.read([back], PAGE_BYTES)
    assert back == page
    with pytest.raises(OSError, match="the file ends"):
        file.read([back], 2 * PAGE_BYTES)
    file.close()
    file.close()


def test_a_queue_runs_no_more_than_its_depth_and_all_before_it_closes() -> None:
    queue = IoQueue("test", 2)
    gate, lock = threading.Event(), threading.Lock()
    running, most, done = 0, 0, 0
    both = threading.Barrier(3)

    def job() -> None:
        nonlocal running, most, done
        with lock:
            running += 1
            most = max(most, running)
        if not gate.is_set():
            both.wait(30)
            gate.wait(30)
        with lock:
            running -= 1
            done += 1

    for _ in range(20):
        queue.submit(job)
    both.wait(30)
    assert queue.waiting == 18
    gate.set()
    queue.close()
    assert (most, done) == (2, 20)


@pytest.fixture
def desk() -> Iterator[TicketDesk]:
    lock = threading.Condition(threading.RLock())
    desk = TicketDesk(lock, 3)
    with lock:
        yield desk
    desk.close()


def test_a_ticket_completes_with_its_last_item(desk: TicketDesk) -> None:
    ticket = desk.open(2)
    ticket.finish(1, ItemStatus.IO_ERROR)
    assert desk.poll() == []
    ticket.finish(0, ItemStatus.OK, 77, 5)
    assert desk.poll() == [
        Completion(ticket.number, (ItemStatus.OK, ItemStatus.IO_ERROR), (77, 0), (5, 0))
    ]
    assert desk.poll() == []


def test_what_is_under_way_is_bounded(desk: TicketDesk) -> None:
    ticket = desk.open(2)
    with pytest.raises(CapacityError, match="max_waiting"):
        desk.open(2)
    ticket.finish(0, ItemStatus.OK)
    ticket.finish(1, ItemStatus.OK)
    assert desk.open(3).number == ticket.number + 1


def test_waiting_takes_one_completion_once(desk: TicketDesk) -> None:
    empty, open_one = desk.open(0).number, desk.open(1).number
    assert desk.wait(empty, 1).statuses == ()
    with pytest.raises(ConfigError, match="taken already"):
        desk.wait(empty, 1)
    with pytest.raises(DeadlineError):
        desk.wait(open_one, 0)
