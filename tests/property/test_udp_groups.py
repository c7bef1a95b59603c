"""Properties of how the UDP link cuts a burst into calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from emulator.link._udp_kernels import GROUP, MAX_PAYLOAD_BYTES, cut_group
from emulator.link.frames import Burst
from kvlane.verbs.records import new_records

_LENGTHS = st.sampled_from([16, 20, 1040, 4116, 60000])
_FRAMES = st.lists(
    st.tuples(_LENGTHS, st.integers(0, 1), st.integers(0, 1), st.sampled_from([0, 0, 0, 8])),
    min_size=1,
    max_size=80,
)
"""Length, peer, type of service, and a gap in the arena before the frame."""


def _burst(frames: list[tuple[int, int, int, int]]) -> Burst:
    burst = Burst(len(frames), 1)
    offset = 0
    for index, (length, peer, tos, gap) in enumerate(frames):
        record = burst.frames[index]
        offset += gap
        record.offset, record.length, record.dst_lo, record.tos = offset, length, peer, tos
        offset += length
    burst.count = len(frames)
    return burst


def _joins(burst: Burst, first: int, index: int, max_segments: int) -> bool:
    """Whether frame ``index`` may leave with frames ``first`` to ``index - 1``."""
    head, before, frame = (burst.frames[i] for i in (first, index - 1, index))
    return bool(
        index - first < max_segments
        and frame.offset == before.offset + before.length
        and (frame.dst_lo, frame.tos) == (before.dst_lo, before.tos)
        and before.length == head.length >= frame.length
        and frame.offset + frame.length - head.offset <= MAX_PAYLOAD_BYTES
    )


@given(_FRAMES, st.sampled_from([1, 2, 64]))
def test_a_call_takes_all_that_may_join_it_and_nothing_else(
    frames: list[tuple[int, int, int, int]], max_segments: int
) -> None:
    burst = _burst(frames)
    group = new_records(GROUP, 1)[0]
    first = 0
    while first < burst.count:
        cut_group(burst.frames_addr, first, burst.count, max_segments, group)
        end, head, last = int(group.end), burst.frames[first], burst.frames[group.end - 1]
        assert all(_joins(burst, first, index, max_segments) for index in range(first + 1, end))
        assert end == burst.count or not _joins(burst, first, end, max_segments)
        assert group.item() == (
            first,
            end,
            head.offset,
            last.offset + last.length,
            head.length,
            head.tos,
        )
        first = end
    assert first == burst.count
