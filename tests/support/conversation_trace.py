"""Where Mooncake's conversation trace is: not ours to ship, so not on every machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.repository import ROOT

VARIABLE = "KVLANE_TRACE"
_DEFAULT = ROOT.parent / "shared/traces/mooncake/conversation_trace.jsonl"


def conversation_trace() -> Path:
    """Its path; a test that cannot have it ends here."""
    path = Path(os.environ.get(VARIABLE) or _DEFAULT)
    if not path.is_file():
        pytest.skip(f"no trace at {path}; set {VARIABLE} to Mooncake's conversation_trace.jsonl")
    return path
