"""Checks of requests: what passes them may be given to the agent's core as it is."""

from __future__ import annotations

from collections.abc import Sequence

from dpu_agent.control.core import RemoteRegion
from kvlane.control.convert import require_same_major, version_from_message
from kvlane.control.v1 import control_pb2
from kvlane.errors import ProtocolError
from kvlane.limits import MAX_REGIONS_PER_SESSION

MAX_CLIENT_NAME_CHARS = 128
_ADDRESS_SPACE = 1 << 64


def require_compatible_client(
    request: control_pb2.GetCapabilitiesRequest | control_pb2.OpenSessionRequest,
) -> None:
    """``VersionMismatchError`` when the client says that it speaks another major version."""
    if request.HasField("client_version"):
        require_same_major(version_from_message(request.client_version), "the client")


def require_complete(request: control_pb2.OpenSessionRequest) -> None:
    """``ProtocolError`` for an OpenSession without what every session needs."""
    for field in ("client_version", "namespace", "endpoint"):
        if not request.HasField(field):
            raise ProtocolError(f"{field} is missing; a session cannot be opened without it")
    if request.queue_depth == 0:
        raise ProtocolError("queue_depth is 0; ask for at least 1 command in flight")
    name = request.client_name
    if len(name) > MAX_CLIENT_NAME_CHARS or not name.isprintable():
        raise ProtocolError(
            f"client_name must be printable, with at most {MAX_CLIENT_NAME_CHARS} characters"
        )


def regions_from_messages(messages: Sequence[control_pb2.MemoryRegion]) -> list[RemoteRegion]:
    """Host memory that a client offers: not too many regions, each within the 64-bit address
    space, no key twice."""
    if len(messages) > MAX_REGIONS_PER_SESSION:
        raise ProtocolError(
            f"{len(messages)} regions, but a session has at most {MAX_REGIONS_PER_SESSION}; "
            f"register fewer and larger ones"
        )
    regions = [RemoteRegion(message.addr, message.length, message.rkey) for message in messages]
    for index, region in enumerate(regions):
        if region.length == 0 or region.addr + region.length > _ADDRESS_SPACE:
            raise ProtocolError(
                f"regions[{index}]: {region.length} bytes at {region.addr:#x} are no memory"
            )
    if len({region.rkey for region in regions}) < len(regions):
        raise ProtocolError("regions: two of them have the same rkey")
    return regions
