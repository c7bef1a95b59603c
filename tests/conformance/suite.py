"""Which of the upstream tests are run, and what the result must be at least."""

from __future__ import annotations

import ast
from pathlib import Path

MODULES = (
    "addr",
    "atomic",
    "cq",
    "cq_events",
    "cqex",
    "device",
    "mr",
    "pd",
    "qp",
    "qpex",
    "rdmacm",
    "srq",
    "parent_domain",
    "relaxed_ordering",
    "shared_pd",
    "fork",
)
"""The vendor-neutral modules of the suite: ``tests/test_<name>.py`` upstream."""

TOTAL = 155
"""Tests in these modules. Fewer means that some were lost, so it is no result at all."""

FLOOR = 120
"""Of these, how many must pass, so that a device cannot pass by declining everything."""


def listed_tests(tests_folder: Path, module: str) -> tuple[str, ...]:
    """``Class.test_name`` of every test written in a module, which is only read, not imported."""
    tree = ast.parse((tests_folder / f"test_{module}.py").read_text(encoding="utf-8"))
    return tuple(
        f"{group.name}.{test.name}"
        for group in tree.body
        if isinstance(group, ast.ClassDef)
        for test in group.body
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test")
    )
