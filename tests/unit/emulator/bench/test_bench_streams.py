from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.bench.peers.memcached import MetaReplies
from emulator.bench.peers.resp import RespReplies, request
from emulator.bench.peers.streams import ReplyReader

BLOCKS = st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=5)
CUTS = st.lists(st.integers(1, 20), min_size=1, max_size=8)


class Script:
    """A stream that gives its bytes in pieces of the lengths said, then ends."""

    def __init__(self, text: bytes, cuts: list[int]) -> None:
        self._text, self._cuts, self._turn = text, cuts, 0

    def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0, /) -> int:
        want = min(len(buffer), self._cuts[self._turn % len(self._cuts)])
        self._turn += 1
        part, self._text = self._text[:want], self._text[want:]
        buffer[: len(part)] = part
        return len(part)


def _rows(blocks: list[bytes]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.zeros((len(blocks), 8), np.uint8)


@given(BLOCKS, CUTS, st.lists(st.booleans(), min_size=1, max_size=20))
def test_resp_replies_are_read_however_the_stream_is_cut(
    blocks: list[bytes], cuts: list[int], flags: list[bool]
) -> None:
    bulks = b"".join(b"$8\r\n%b\r\n" % block for block in blocks)
    ones = b"".join(b":%d\r\n" % flag for flag in flags)
    replies = RespReplies(ReplyReader(Script(b"+OK\r\n" + bulks + ones + b"+OK\r\n", cuts)))
    rows = _rows(blocks)
    replies.ok()
    for row in rows:
        replies.block(row)
    assert rows.tobytes() == b"".join(blocks)
    assert replies.ones(len(flags)) == sum(flags)
    replies.ok()


@given(BLOCKS, CUTS, st.lists(st.booleans(), min_size=1, max_size=20))
def test_memcached_replies_are_read_however_the_stream_is_cut(
    blocks: list[bytes], cuts: list[int], flags: list[bool]
) -> None:
    values = b"".join(b"VA 8 \r\n%b\r\n" % block for block in blocks)
    hits = b"".join(b"HD\r\n" if flag else b"EN\r\n" for flag in flags)
    script = Script(b"HD\r\n" * 3 + values + hits + b"OK\r\n", cuts)
    replies = MetaReplies(ReplyReader(script))
    rows = _rows(blocks)
    replies.stored(3)
    for row in rows:
        replies.block(row)
    assert rows.tobytes() == b"".join(blocks)
    assert replies.hits(len(flags)) == sum(flags)
    replies.ok()


@pytest.mark.parametrize("text", [b"-ERR no\r\n", b"$9\r\n123456789\r\n", b"$8\r\n123"])
def test_what_is_not_the_expected_bulk_string_is_an_error(text: bytes) -> None:
    with pytest.raises(ConnectionError):
        RespReplies(ReplyReader(Script(text, [4]))).block(np.zeros(8, np.uint8))


@pytest.mark.parametrize("text", [b"EN\r\n", b"VA 7 \r\n1234567\r\n", b"VA 8 \r\n12345678xx"])
def test_what_is_not_the_expected_value_is_an_error(text: bytes) -> None:
    with pytest.raises(ConnectionError):
        MetaReplies(ReplyReader(Script(text, [4]))).block(np.zeros(8, np.uint8))


def test_a_line_without_an_end_is_refused() -> None:
    with pytest.raises(ConnectionError, match="without an end"):
        ReplyReader(Script(b"x" * (1 << 17), [1 << 16])).line()


def test_requests_are_arrays_of_bulk_strings() -> None:
    assert request(b"EXISTS", b"k\r") == b"*2\r\n$6\r\nEXISTS\r\n$2\r\nk\r\r\n"
