"""What people are told when a queue pair breaks."""

from __future__ import annotations

import pytest

from dpu_agent.data.failures import explain
from kvlane.verbs.enums import WcStatus


@pytest.mark.parametrize("status", [*WcStatus, 99])
def test_every_status_has_a_text(status: int) -> None:
    assert explain(status).endswith(f"({status.name})" if isinstance(status, WcStatus) else "99")
