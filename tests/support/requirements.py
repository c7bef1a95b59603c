"""What tests need of the machine: programs and privileges that not every machine has.

Without them a test is skipped, unless ``KVLANE_REQUIRE_ALL=1``: then it fails and says what
to install or allow, so that a machine which is to run everything leaves out nothing unnoticed.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

VARIABLE = "KVLANE_REQUIRE_ALL"
ALL_ARE_REQUIRED = os.environ.get(VARIABLE) == "1"


def lacking(what: str) -> NoReturn:
    """End a test that cannot run here; ``what`` says what to install or allow."""
    if ALL_ARE_REQUIRED:
        pytest.fail(f"{what}; {VARIABLE}=1 allows no skip")
    pytest.skip(what)
