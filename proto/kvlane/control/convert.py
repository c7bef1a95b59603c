"""Between the messages of the control API and the values that the rest of kvlane uses.

A message that came from a peer is checked here once: what these functions return can be
used without a second look. What they refuse is a ``ProtocolError`` that names the field.
"""

from __future__ import annotations

import re
from dataclasses import asdict, fields

from kvlane.control.v1 import control_pb2
from kvlane.errors import ProtocolError, VersionMismatchError
from kvlane.limits import CONTROL_MAJOR, CONTROL_MINOR, CONTROL_PATCH
from kvlane.namespace import Namespace
from kvlane.verbs.enums import Mtu
from kvlane.verbs.protocols import QpEndpoint

Version = tuple[int, int, int]
"""Major, minor, patch."""

CONTROL_VERSION: Version = (CONTROL_MAJOR, CONTROL_MINOR, CONTROL_PATCH)
"""What this side speaks."""

GID_BYTES = 16
_SESSION_NAME = re.compile(r"sessions/(0|[1-9][0-9]{0,19})", re.ASCII)


def version_message(version: Version = CONTROL_VERSION) -> control_pb2.Version:
    """A version as a message."""
    major, minor, patch = version
    return control_pb2.Version(major=major, minor=minor, patch=patch)


def version_from_message(message: control_pb2.Version) -> Version:
    """A message as (major, minor, patch)."""
    return (message.major, message.minor, message.patch)


def require_same_major(peer: Version, who: str) -> None:
    """``VersionMismatchError`` with both versions, unless the majors are equal.

    ``who`` names the peer in the error's text.
    """
    if peer[0] != CONTROL_MAJOR:
        theirs, ours = (".".join(map(str, version)) for version in (peer, CONTROL_VERSION))
        raise VersionMismatchError(
            f"{who} speaks control version {theirs}, this side speaks {ours}: another major "
            f"version is incompatible. Install the same major version of kvlane on both sides."
        )


def endpoint_message(endpoint: QpEndpoint) -> control_pb2.QpEndpoint:
    """A queue pair's endpoint as a message."""
    return control_pb2.QpEndpoint(
        gid=endpoint.gid,
        udp_port=endpoint.udp_port,
        qp_num=endpoint.qp_num,
        psn=endpoint.psn,
        mtu_bytes=endpoint.mtu_bytes,
    )


def endpoint_from_message(message: control_pb2.QpEndpoint) -> QpEndpoint:
    """The endpoint that a peer offers; ``ProtocolError`` where it cannot be one."""
    if len(message.gid) != GID_BYTES:
        raise ProtocolError(f"endpoint.gid has {len(message.gid)} bytes; a GID has {GID_BYTES}")
    if not 1 <= message.udp_port <= 0xFFFF:
        raise ProtocolError(f"endpoint.udp_port must be 1 to 65535, not {message.udp_port}")
    # QPN and PSN are 24-bit fields of the BTH (IBTA 1.7 section 9.2).
    for field in ("qp_num", "psn"):
        value = getattr(message, field)
        if value >= 1 << 24:
            raise ProtocolError(f"endpoint.{field} is a 24-bit number, not {value}")
    try:
        Mtu.from_bytes_size(message.mtu_bytes)
    except ValueError as error:
        raise ProtocolError(f"endpoint.mtu_bytes: {error}") from error
    return QpEndpoint(
        gid=message.gid,
        udp_port=message.udp_port,
        qp_num=message.qp_num,
        psn=message.psn,
        mtu_bytes=message.mtu_bytes,
    )


def namespace_message(namespace: Namespace) -> control_pb2.Namespace:
    """A descriptor as a message; the fields of both have the same names."""
    return control_pb2.Namespace(**asdict(namespace))


def namespace_from_message(message: control_pb2.Namespace) -> Namespace:
    """The descriptor that a peer offers; ``ConfigError`` names a field that cannot be.

    Nothing is filled in: a field that the peer left out counts as zero or empty, since a
    guessed dtype or layout would be a silent mismatch.
    """
    return Namespace.from_mapping(
        {field.name: getattr(message, field.name) for field in fields(Namespace)}
    )


def session_name(session_id: int) -> str:
    """The resource name of a session."""
    return f"sessions/{session_id}"


def parse_session_name(name: str) -> int:
    """The id in a session's resource name; ``ProtocolError`` says what one looks like."""
    match = _SESSION_NAME.fullmatch(name)
    if match is None or int(match[1]) >= 1 << 64:
        raise ProtocolError(
            f"{name!r} is not a session's name; one looks like sessions/7, as OpenSession returns"
        )
    return int(match[1])
