"""Errors to gRPC statuses and back: the class, its text and its fields survive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import grpc
import pytest

from kvlane.control.status import ERROR_CLASS_KEY, ERROR_FIELDS_KEY, error_of, status_of
from kvlane.errors import (
    GRPC_STATUS,
    AgentUnreachableError,
    CapacityError,
    DeadlineError,
    DrainingError,
    KvlaneError,
    NamespaceMismatchError,
    ProtocolError,
    VerbsError,
    VersionMismatchError,
    grpc_status_name,
)

TARGET = "127.0.0.1:50057"


class Item(NamedTuple):
    key: str
    value: str | bytes


class Failure(grpc.RpcError):
    """A failed call as a client of gRPC sees it."""

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str | None,
        metadata: Sequence[tuple[str, str | bytes]] | None = (),
    ) -> None:
        self._code, self._details, self._metadata = code, details, metadata

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details

    def trailing_metadata(self) -> tuple[Item, ...] | None:  # type: ignore[override]
        return None if self._metadata is None else tuple(Item(*item) for item in self._metadata)


def there_and_back(error: KvlaneError) -> KvlaneError:
    return error_of(Failure(*status_of(error)), TARGET, 100)


@pytest.mark.parametrize("cls", [cls for cls in GRPC_STATUS if cls is not NamespaceMismatchError])
def test_error_comes_back_as_itself(cls: type[KvlaneError]) -> None:
    error = cls("what is wrong and what to do: größer")
    code, _, _ = status_of(error)
    assert code.name == grpc_status_name(error)
    returned = there_and_back(error)
    assert type(returned) is cls
    assert str(returned) == str(error)


def test_namespace_mismatch_comes_back_with_its_fields() -> None:
    error = NamespaceMismatchError("prod é", "kv_dtype", "'bfloat16'", "'float8_e4m3'")
    returned = there_and_back(error)
    assert isinstance(returned, NamespaceMismatchError)
    assert (returned.name, returned.field) == ("prod é", "kv_dtype")
    assert (returned.stored, returned.offered) == ("'bfloat16'", "'float8_e4m3'")
    assert str(returned) == str(error)


def test_class_outside_the_table_comes_back_as_its_nearest_listed_ancestor() -> None:
    class DoorbellError(VerbsError):
        pass

    assert type(there_and_back(DoorbellError("stuck"))) is VerbsError


@pytest.mark.parametrize("long", ["x" * 100_000, "é" * 100_000, "\U0001f600" * 100_000])
def test_long_texts_fit_into_the_trailers_of_grpc(long: str) -> None:
    error = NamespaceMismatchError("n", "model", long, long)
    _, details, metadata = status_of(error)
    # Details are percent-encoded, three characters a byte at worst; -bin values are base64.
    nbytes = 3 * len(details.encode()) + sum(len(value) * 4 // 3 for _, value in metadata)
    assert nbytes < 8192 - 512
    returned = there_and_back(error)
    assert isinstance(returned, NamespaceMismatchError)
    assert returned.field == "model"
    assert returned.stored.endswith("...")


@pytest.mark.parametrize("fields", [None, b"", b"[1]", b"{", b"\xff", b"7"])
def test_unreadable_mismatch_fields_still_give_the_text(fields: bytes | None) -> None:
    metadata: list[tuple[str, str | bytes]] = [(ERROR_CLASS_KEY, "NamespaceMismatchError")]
    if fields is not None:
        metadata.append((ERROR_FIELDS_KEY, fields))
    failure = Failure(grpc.StatusCode.FAILED_PRECONDITION, "differs in layout", metadata)
    assert str(error_of(failure, TARGET, 100)) == "differs in layout"


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, ProtocolError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, CapacityError),
        (grpc.StatusCode.UNIMPLEMENTED, VersionMismatchError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineError),
        (grpc.StatusCode.UNKNOWN, KvlaneError),
        # An agent did answer, so it is not unreachable.
        (grpc.StatusCode.UNAVAILABLE, KvlaneError),
    ],
)
def test_class_of_a_newer_agent_falls_back_to_the_status(
    code: grpc.StatusCode, cls: type[KvlaneError]
) -> None:
    error = error_of(Failure(code, "why", [(ERROR_CLASS_KEY, "NewerError")]), TARGET, 100)
    assert type(error) is cls
    assert "why" in str(error)
    assert TARGET in str(error)


def test_unavailable_without_a_class_says_how_to_start_an_agent() -> None:
    error = error_of(Failure(grpc.StatusCode.UNAVAILABLE, "connection refused", None), TARGET, 100)
    assert type(error) is AgentUnreachableError
    for part in (TARGET, "kvlane emulate", "kvlane agent --config agent.yaml", "refused"):
        assert part in str(error)


def test_draining_agent_is_not_an_unreachable_one() -> None:
    assert type(there_and_back(DrainingError("draining"))) is DrainingError


def test_deadline_names_target_and_time() -> None:
    error = error_of(Failure(grpc.StatusCode.DEADLINE_EXCEEDED, None), TARGET, 250)
    assert type(error) is DeadlineError
    assert TARGET in str(error)
    assert "250 ms" in str(error)
