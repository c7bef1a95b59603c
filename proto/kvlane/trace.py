"""Requests of a trace in the Mooncake format, one JSON object a line.

    {"timestamp": 0, "input_length": 2290, "output_length": 316, "hash_ids": [0, 42, 43, 44, 45]}

``timestamp`` is in milliseconds, lengths are in tokens. ``hash_ids`` names the blocks of
the prompt in order; since each name stands for the block and all before it, equal names
are equal prefixes. Fields beyond these four belong to relatives of the format and are
passed over.

Requests are taken in the file's order; a timestamp that goes back (shards merged by hand have
such) is no error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from kvlane.errors import TraceFormatError

MAX_BLOCK_ID = (1 << 64) - 1
"""A block's name is hashed into its key as 8 bytes."""

_EXAMPLE = '{"timestamp": 0, "input_length": 900, "output_length": 80, "hash_ids": [0, 1]}'


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt as a cache sees it."""

    timestamp_ms: float
    """Arrival after the start of the trace."""
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    """Names of the prompt's blocks from its start, each 0 to 2^64 - 1."""


def read_trace(path: Path) -> Iterator[Request]:
    """Stream the requests of a trace file.

    ``TraceFormatError`` names the file and the line that cannot be read; it is also
    raised when the file holds no request. Blank lines are skipped.
    """
    found = False
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            found = True
            yield _parse_line(line, f"{path}:{number}")
    if not found:
        raise TraceFormatError(f"{path}: no request in it; a line looks like {_EXAMPLE}")


def _parse_line(line: bytes, where: str) -> Request:
    """A request from one line; ``where`` starts the text of every error."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceFormatError(
            f"{where}: not JSON at column {error.colno} ({error.msg}); is the line cut off?"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TraceFormatError(f"{where}: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise TraceFormatError(f"{where}: not a JSON object; a line looks like {_EXAMPLE}")
    return Request(
        timestamp_ms=_milliseconds(record, where),
        input_tokens=_count(record, "input_length", where),
        output_tokens=_count(record, "output_length", where),
        block_ids=_block_ids(record, where),
    )


def _is_int(value: object) -> TypeGuard[int]:
    """True for JSON integers; ``true`` and ``false`` are not numbers here."""
    return isinstance(value, int) and not isinstance(value, bool)


def _field(record: dict[str, object], name: str, where: str) -> object:
    if name not in record:
        raise TraceFormatError(f"{where}: field {name!r} is missing")
    return record[name]


def _milliseconds(record: dict[str, object], where: str) -> float:
    value = _field(record, "timestamp", where)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TraceFormatError(f"{where}: timestamp must be a number of ms, not {value!r}")
    if not 0 <= value < math.inf:
        raise TraceFormatError(f"{where}: timestamp must be finite and not negative, not {value}")
    return value


def _count(record: dict[str, object], name: str, where: str) -> int:
    value = _field(record, name, where)
    if not _is_int(value):
        raise TraceFormatError(f"{where}: {name} must be an integer, not {value!r}")
    if value < 0:
        raise TraceFormatError(f"{where}: {name} must not be negative, not {value}")
    return value


def _block_ids(record: dict[str, object], where: str) -> tuple[int, ...]:
    value = _field(record, "hash_ids", where)
    if not isinstance(value, list):
        raise TraceFormatError(f"{where}: hash_ids must be a list of integers, not {value!r}")
    for index, block_id in enumerate(value):
        if not _is_int(block_id) or not 0 <= block_id <= MAX_BLOCK_ID:
            raise TraceFormatError(
                f"{where}: hash_ids[{index}] must be an integer from 0 to 2^64 - 1, "
                f"not {block_id!r}"
            )
    return tuple(value)
