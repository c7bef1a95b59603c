"""wr_ids survive the way through a signed 64-bit field, and no part spills into another."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.data._work_id_kernels import SERIAL_MASK, WorkKind, pack_work_id, unpack_work_id


@given(
    st.sampled_from(WorkKind),
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 16) - 1),
    st.integers(0, (1 << 12) - 1),
)
def test_round_trip(kind: WorkKind, session_id: int, connection: int, slot: int) -> None:
    serial = session_id & SERIAL_MASK
    carried = int(np.int64(pack_work_id(int(kind), serial, connection, slot)))
    assert unpack_work_id(carried) == (kind, serial, connection, slot)
