"""What people are told when a queue pair breaks."""

from __future__ import annotations

import pytest

from dpu_agent.data.failures import explain, first_causes
from kvlane.verbs.enums import WcStatus
from kvlane.verbs.records import WC, new_records


def test_the_cause_counts_and_not_the_flush_around_it() -> None:
    batch = new_records(WC, 6)
    batch["qp_num"] = [1, 1, 1, 2, 3, 1]
    batch["status"] = [
        WcStatus.WR_FLUSH_ERR,
        WcStatus.RETRY_EXC_ERR,
        WcStatus.WR_FLUSH_ERR,
        WcStatus.WR_FLUSH_ERR,
        WcStatus.SUCCESS,
        WcStatus.REM_OP_ERR,
    ]
    assert first_causes(batch) == {1: WcStatus.RETRY_EXC_ERR, 2: WcStatus.WR_FLUSH_ERR}


@pytest.mark.parametrize("status", [*WcStatus, 99])
def test_every_status_has_a_text(status: int) -> None:
    assert explain(status).endswith(f"({status.name})" if isinstance(status, WcStatus) else "99")
