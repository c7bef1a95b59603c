"""The engine's records: none has a field that only costs its memory."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import emulator.nic
import emulator.roce
from emulator.roce import state

SOURCES = sorted(
    path for room in (emulator.roce, emulator.nic) for path in Path(room.__path__[0]).rglob("*.py")
)
RECORDS = {
    "NIC": (state.NIC, {"nic", "_nic", "_state"}),
    "QP": (state.QP, {"qp", "table"}),
    "CQ": (state.CQ, {"cq", "cq_at", "table", "record"}),
    "SRQ": (state.SRQ, {"srq", "srq_at", "table", "record"}),
    "MR": (state.MR, {"mr", "window", "region", "table"}),
    "WQE": (state.WQE, {"wqe", "entry"}),
    "RQE": (state.RQE, {"rqe", "entry", "entries"}),
    "JOB": (state.JOB, {"job", "job_at"}),
    "ATOMIC_RESULT": (state.ATOMIC_RESULT, {"result", "atomic_result_at"}),
    "EVENT": (state.EVENT, {"entry", "event"}),
}
"""With the names by which they go; not with those that a poster's records have, because
copying a field to the engine's record uses it for nothing."""


def owner(node: ast.expr) -> str:
    """The name of what an attribute is of: of ``self.table[i].x`` and ``qp_at(n, i).x`` too."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def reads() -> set[tuple[str, str]]:
    """Owner and name of every attribute that is read."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add((owner(node.value), node.attr))
    return found


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_is_read_somewhere(name: str) -> None:
    dtype: np.dtype[np.void]
    dtype, owners = RECORDS[name]
    fields = set(dtype.names or ())
    assert fields
    assert fields - {attr for who, attr in reads() if who in owners} == set()
