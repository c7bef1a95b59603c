"""Reading a trace: what a good line means, and that a bad one is named by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvlane.errors import TraceFormatError
from kvlane.trace import Request, read_trace

GOOD = {"timestamp": 3052, "input_length": 900, "output_length": 80, "hash_ids": [0, 42]}


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_line_becomes_a_request(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", json.dumps(GOOD))
    assert list(read_trace(trace)) == [Request(3052, 900, 80, (0, 42))]


def test_order_is_the_files_and_times_may_go_back(tmp_path: Path) -> None:
    lines = [json.dumps({**GOOD, "timestamp": t}) for t in (5, 7.5, 2)]
    requests = list(read_trace(write(tmp_path / "t.jsonl", *lines)))
    assert [request.timestamp_ms for request in requests] == [5, 7.5, 2]


def test_fields_of_related_formats_and_blank_lines_are_passed_over(tmp_path: Path) -> None:
    line = json.dumps({**GOOD, "type": "text", "turn": 3})
    assert len(list(read_trace(write(tmp_path / "t.jsonl", line, "", line, "  ")))) == 2


def test_the_largest_block_name_is_read(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", json.dumps({**GOOD, "hash_ids": [2**64 - 1]}))
    assert next(read_trace(trace)).block_ids == (2**64 - 1,)


def test_lines_are_read_as_they_are_needed(tmp_path: Path) -> None:
    requests = read_trace(write(tmp_path / "t.jsonl", json.dumps(GOOD), "broken"))
    assert next(requests).input_tokens == 900
    with pytest.raises(TraceFormatError):
        next(requests)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"timestamp": "0"}, "timestamp must be a number"),
        ({"timestamp": True}, "timestamp must be a number"),
        ({"timestamp": -1}, "timestamp must be finite and not negative"),
        ({"timestamp": float("nan")}, "timestamp must be finite"),
        ({"timestamp": float("inf")}, "timestamp must be finite"),
        ({"input_length": 12.0}, "input_length must be an integer, not 12.0"),
        ({"input_length": -3}, "input_length must not be negative, not -3"),
        ({"output_length": None}, "output_length must be an integer, not None"),
        ({"output_length": True}, "output_length must be an integer"),
        ({"hash_ids": "0,1"}, "hash_ids must be a list"),
        ({"hash_ids": [0, "1"]}, r"hash_ids\[1\] must be an integer from 0 to 2\^64 - 1, not '1'"),
        ({"hash_ids": [0, 1, 2.5]}, r"hash_ids\[2\] must be an integer"),
        ({"hash_ids": [False]}, r"hash_ids\[0\] must be an integer"),
        ({"hash_ids": [-1]}, r"hash_ids\[0\] must be an integer from 0"),
        ({"hash_ids": [2**64]}, r"hash_ids\[0\] must be an integer from 0"),
    ],
)
def test_a_bad_value_is_named_with_file_and_line(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    trace = write(tmp_path / "t.jsonl", json.dumps(GOOD), json.dumps({**GOOD, **change}))
    with pytest.raises(TraceFormatError, match=rf"t\.jsonl:2: {says}"):
        list(read_trace(trace))


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    line = json.dumps({key: value for key, value in GOOD.items() if key != name})
    with pytest.raises(TraceFormatError, match=rf"t\.jsonl:1: field '{name}' is missing"):
        list(read_trace(write(tmp_path / "t.jsonl", line)))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (json.dumps(GOOD)[:-4], "not JSON at column"),
        ("[1, 2]", "not a JSON object"),
        ("7", "not a JSON object"),
        ("[" * 200_000, "not JSON"),
    ],
)
def test_what_is_no_object_is_refused(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(TraceFormatError, match=rf"t\.jsonl:1: {says}"):
        list(read_trace(write(tmp_path / "t.jsonl", line)))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_bytes(b'{"timestamp": \xff\xfe}\n')
    with pytest.raises(TraceFormatError, match=r"t\.jsonl:1: not JSON"):
        list(read_trace(trace))


@pytest.mark.parametrize("lines", [(), ("", "   ")])
def test_a_trace_without_requests_is_an_error(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(TraceFormatError, match=r"t\.jsonl: no request"):
        list(read_trace(write(tmp_path / "t.jsonl", *lines)))
