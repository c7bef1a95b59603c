"""Every error has one gRPC status, and callers may catch it as what they know."""

from __future__ import annotations

import grpc
import pytest

from kvlane import errors
from kvlane.capsule import CapsuleError, CommandStatus
from kvlane.errors import GRPC_STATUS, KvlaneError, grpc_status_name


def tree(cls: type[KvlaneError]) -> set[type[KvlaneError]]:
    """A class and everything below it that is loaded."""
    return {cls}.union(*(tree(child) for child in cls.__subclasses__()))


def test_table_is_total_over_the_error_tree() -> None:
    declared = {cls for cls in tree(KvlaneError) if cls.__module__ == errors.__name__}
    assert set(GRPC_STATUS) == declared


def test_error_declared_elsewhere_has_the_status_of_a_listed_branch() -> None:
    elsewhere = tree(KvlaneError) - set(GRPC_STATUS)
    assert CapsuleError in elsewhere
    for cls in elsewhere:
        assert any(parent in GRPC_STATUS for parent in cls.__mro__ if parent is not KvlaneError)


@pytest.mark.parametrize("cls", GRPC_STATUS, ids=lambda cls: cls.__name__)
def test_status_is_one_that_grpc_knows_and_not_success(cls: type[KvlaneError]) -> None:
    assert grpc.StatusCode[GRPC_STATUS[cls]] is not grpc.StatusCode.OK


def test_status_is_that_of_the_nearest_listed_class() -> None:
    class StaleSessionError(errors.SessionNotFoundError):
        pass

    refusal = CapsuleError(CommandStatus.BAD_MAGIC, 1, 2, "no capsule")
    assert grpc_status_name(StaleSessionError("x")) == "NOT_FOUND"
    assert grpc_status_name(errors.SessionError("x")) == "INVALID_ARGUMENT"
    assert grpc_status_name(errors.VersionMismatchError("x")) == "FAILED_PRECONDITION"
    assert grpc_status_name(refusal) == "INVALID_ARGUMENT"
    assert grpc_status_name(KvlaneError("x")) == "INTERNAL"


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.TraceFormatError, ValueError),
        (errors.DeadlineError, TimeoutError),
    ],
)
def test_error_is_caught_as_the_builtin_of_its_kind(
    cls: type[KvlaneError], builtin: type[Exception]
) -> None:
    with pytest.raises(builtin, match="what to do"):
        raise cls("what to do")


def test_namespace_mismatch_says_what_differs_and_what_to_do() -> None:
    error = errors.NamespaceMismatchError("llama", "kv_dtype", "'bfloat16'", "'float8'")
    assert (error.name, error.field) == ("llama", "kv_dtype")
    assert (error.stored, error.offered) == ("'bfloat16'", "'float8'")
    text = str(error)
    assert all(part in text for part in ("'llama'", "kv_dtype", "'bfloat16'", "'float8'"))
    assert "attach with the same descriptor" in text
