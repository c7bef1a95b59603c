"""Cells of the matrix: one line each, what failed and why, and the count."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum

from tests.interop.remote import RemoteError


class Outcome(str, Enum):
    """How a cell ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class MismatchError(Exception):
    """Something is not as both sides should have it."""


class CannotRunError(Exception):
    """The cell makes no sense on this machine or peer; the text says why."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the result."""

    case: str
    setting: str
    direction: str
    nbytes: int | None
    outcome: Outcome
    detail: str
    duration_ms: float

    def line(self) -> str:
        """For people."""
        size = "" if self.nbytes is None else f"{self.nbytes}"
        detail = f"  {self.detail.strip().splitlines()[-1]}" if self.detail else ""
        words = f"{self.case:<22} {self.setting:<15} {self.direction:<18} {size:>8}"
        return f"{words}  {self.outcome.value}{detail}"


class Report:
    """Collects cells and prints each as it ends."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []

    @contextmanager
    def cell(
        self, case: str, setting: str, direction: str, nbytes: int | None = None
    ) -> Iterator[None]:
        """The body is the cell: it passes unless it raises one of this package's errors."""
        begin = time.monotonic()
        outcome, detail = Outcome.PASSED, ""
        try:
            yield
        except CannotRunError as reason:
            outcome, detail = Outcome.SKIPPED, str(reason)
        except (MismatchError, RemoteError) as reason:
            outcome, detail = Outcome.FAILED, str(reason)
        duration_ms = (time.monotonic() - begin) * 1e3
        cell = Cell(case, setting, direction, nbytes, outcome, detail, duration_ms)
        self.cells.append(cell)
        print(cell.line(), flush=True)

    def count(self, outcome: Outcome) -> int:
        """How many cells ended so."""
        return Counter(cell.outcome for cell in self.cells)[outcome]

    def summary(self) -> str:
        """The last line."""
        passed, failed, skipped = (self.count(outcome) for outcome in Outcome)
        return f"interop: {passed} passed, {failed} failed, {skipped} skipped"

    def as_records(self) -> list[dict[str, object]]:
        """For JSON."""
        return [asdict(cell) for cell in self.cells]


def require(is_so: object, otherwise: str) -> None:
    """Fail the cell unless it is so."""
    if not is_so:
        raise MismatchError(otherwise)
