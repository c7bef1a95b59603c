"""One tree of errors, and the one table that turns them into gRPC status codes."""

from __future__ import annotations

from typing import Any


class KvlaneError(Exception):
    """Root of everything that kvlane raises on purpose."""

    results: Any = None
    """What a call that failed would have returned, where it had begun; else None. Keys that no
    answer came for have ``KeyStatus.ABORTED``: nobody knows whether such a block was stored.
    ``match`` counts, and ``exist`` marks, what was known to be stored by then."""


class ConfigError(KvlaneError, ValueError):
    """A configuration or an option that cannot be used; the text says what to write instead."""


class ProtocolError(KvlaneError):
    """A peer broke the protocol: bad magic, version, length or count."""


class VersionMismatchError(ProtocolError):
    """The peer speaks an incompatible major version."""


class NamespaceMismatchError(KvlaneError):
    """A namespace exists under this name with another descriptor."""

    def __init__(self, name: str, field: str, stored: str, offered: str) -> None:
        self.name = name
        self.field = field
        self.stored = stored
        self.offered = offered
        super().__init__(
            f"namespace {name!r} differs in {field}: the agent has {stored}, this session "
            f"offers {offered}. Blocks of one layout must never be read as another; attach "
            f"with the same descriptor or choose another namespace name."
        )


class SessionError(KvlaneError):
    """A session is unknown, closed, or was opened with parameters that cannot be met."""


class SessionNotFoundError(SessionError):
    """No session of that name; it was closed, or the agent has restarted."""


class DrainingError(KvlaneError):
    """The agent takes no new sessions because it is draining."""


class CapacityError(KvlaneError):
    """A limit of sessions, regions or memory is reached."""


class VerbsError(KvlaneError):
    """The NIC refused or failed an operation."""


class QueueFullError(VerbsError):
    """More work requests than the queue holds; none of them was posted."""


class CreditError(KvlaneError):
    """More commands in flight than the session's queue depth allows."""


class AgentUnreachableError(KvlaneError):
    """No agent answers at the target; the text says how to start one."""


class TransferError(KvlaneError):
    """The data path failed in the middle; the connection must be opened anew."""


class DeadlineError(KvlaneError, TimeoutError):
    """An operation did not end within its time."""


class TraceFormatError(KvlaneError, ValueError):
    """A line of a trace file cannot be read; the text names the file and the line."""


class StorageError(KvlaneError):
    """A directory or file of the segment log cannot be used, or has failed."""


class StorageFormatError(StorageError):
    """A file of the segment log is foreign, damaged, or of a newer format."""


GRPC_STATUS: dict[type[KvlaneError], str] = {
    KvlaneError: "INTERNAL",
    ConfigError: "INVALID_ARGUMENT",
    ProtocolError: "INVALID_ARGUMENT",
    VersionMismatchError: "FAILED_PRECONDITION",
    NamespaceMismatchError: "FAILED_PRECONDITION",
    SessionError: "INVALID_ARGUMENT",
    SessionNotFoundError: "NOT_FOUND",
    DrainingError: "UNAVAILABLE",
    CapacityError: "RESOURCE_EXHAUSTED",
    VerbsError: "INTERNAL",
    QueueFullError: "RESOURCE_EXHAUSTED",
    CreditError: "RESOURCE_EXHAUSTED",
    AgentUnreachableError: "UNAVAILABLE",
    TransferError: "UNAVAILABLE",
    DeadlineError: "DEADLINE_EXCEEDED",
    TraceFormatError: "INVALID_ARGUMENT",
    StorageError: "UNAVAILABLE",
    StorageFormatError: "FAILED_PRECONDITION",
}
"""Error class -> name of its ``grpc.StatusCode``; total over the tree (a test holds it)."""


def grpc_status_name(error: KvlaneError) -> str:
    """The gRPC status of an error: its own, or that of its nearest listed ancestor."""
    for cls in type(error).__mro__:
        if cls in GRPC_STATUS:
            return GRPC_STATUS[cls]
    return GRPC_STATUS[KvlaneError]
