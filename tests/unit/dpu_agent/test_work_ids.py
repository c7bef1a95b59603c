"""wr_ids survive the way through a signed 64-bit field, and no part spills into another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.data.work_ids import SERIAL_MASK, WorkKind, pack_work_id, unpack_work_id


@given(
    st.sampled_from(WorkKind),
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 28) - 1),
)
def test_round_trip(kind: WorkKind, session_id: int, slot: int) -> None:
    carried = int(np.int64(pack_work_id(kind, session_id, slot)))
    assert unpack_work_id(carried) == (kind, session_id & SERIAL_MASK, slot)


def test_a_wr_id_that_the_agent_never_made_is_an_error() -> None:
    with pytest.raises(ValueError):
        unpack_work_id(0)
