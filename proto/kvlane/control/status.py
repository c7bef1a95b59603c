"""Errors across gRPC: an error of ``kvlane.errors`` that the agent raises is raised as itself
by the driver.

The status code says it to every gRPC client; trailing metadata adds the name of the class,
and the fields of a class whose constructor wants more than a text.
"""

from __future__ import annotations

import json

import grpc

from kvlane.errors import (
    GRPC_STATUS,
    AgentUnreachableError,
    CapacityError,
    DeadlineError,
    KvlaneError,
    NamespaceMismatchError,
    ProtocolError,
    SessionNotFoundError,
    VersionMismatchError,
    grpc_status_name,
)

ERROR_CLASS_KEY = "kvlane-error"
"""Metadata: name of the nearest class that is in ``GRPC_STATUS``."""
ERROR_FIELDS_KEY = "kvlane-error-fields-bin"
"""Metadata: JSON array of a ``NamespaceMismatchError``'s name, field, stored and offered."""

MAX_TEXT_BYTES = 1024
MAX_FIELD_BYTES = 256
"""Both travel in HTTP/2 trailers, of which gRPC takes 8 KiB by default, escaped to thrice
their length at worst; a longer one would replace the error by one about metadata."""

Metadata = tuple[tuple[str, str | bytes], ...]
"""Trailing metadata; values of keys in ``-bin`` are bytes."""

_CLASSES = {cls.__name__: cls for cls in GRPC_STATUS}
_MISMATCH_FIELDS = ("name", "field", "stored", "offered")

_CLASS_BY_STATUS: dict[grpc.StatusCode, type[KvlaneError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: ProtocolError,
    grpc.StatusCode.NOT_FOUND: SessionNotFoundError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: CapacityError,
    grpc.StatusCode.UNIMPLEMENTED: VersionMismatchError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
}
"""Where the peer names no class that this version knows."""


def status_of(error: KvlaneError) -> tuple[grpc.StatusCode, str, Metadata]:
    """What a server answers with: code, details, trailing metadata."""
    listed = next(cls for cls in type(error).__mro__ if cls in GRPC_STATUS)
    metadata: Metadata = ((ERROR_CLASS_KEY, listed.__name__),)
    if isinstance(error, NamespaceMismatchError):
        values = [_clipped(getattr(error, name), MAX_FIELD_BYTES) for name in _MISMATCH_FIELDS]
        encoded = json.dumps(values, ensure_ascii=False).encode()
        metadata += ((ERROR_FIELDS_KEY, encoded),)
    code = grpc.StatusCode[grpc_status_name(error)]
    return code, _clipped(str(error), MAX_TEXT_BYTES), metadata


def error_of(failure: grpc.RpcError, target: str, timeout_ms: int) -> KvlaneError:
    """The error that a client raises for a failed call to the agent at ``target``."""
    code = failure.code()
    text = failure.details() or code.name
    metadata: dict[str, str | bytes] = {
        item.key: item.value for item in failure.trailing_metadata() or ()
    }
    named = metadata.get(ERROR_CLASS_KEY)
    if named == NamespaceMismatchError.__name__:
        return _mismatch_of(metadata.get(ERROR_FIELDS_KEY, b"")) or KvlaneError(text)
    if isinstance(named, str) and named in _CLASSES:
        return _CLASSES[named](text)
    if named is None and code is grpc.StatusCode.UNAVAILABLE:
        return AgentUnreachableError(
            f"no kvlane agent answers at {target} ({text}). Start one with `kvlane emulate`, "
            f"or on the DPU with `kvlane agent --config agent.yaml`, and check the address."
        )
    if named is None and code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(
            f"the agent at {target} did not answer within {timeout_ms} ms ({text}). Check that "
            f"the address is reachable, or allow more time."
        )
    return _CLASS_BY_STATUS.get(code, KvlaneError)(
        f"the call to the agent at {target} ended with {code.name}: {text}"
    )


def _mismatch_of(encoded: str | bytes) -> NamespaceMismatchError | None:
    """None where the peer's fields cannot be read; they are its to get wrong."""
    try:
        name, field, stored, offered = map(str, json.loads(encoded))
    except (ValueError, TypeError):
        return None
    return NamespaceMismatchError(name, field, stored, offered)


def _clipped(text: str, max_bytes: int) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return encoded.decode()
    return encoded[: max_bytes - 3].decode("utf-8", "ignore") + "..."
