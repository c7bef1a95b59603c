"""Conversions of the control API: nothing is lost on the way, nonsense is refused by name."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kvlane.control import convert
from kvlane.control.v1 import control_pb2
from kvlane.errors import ConfigError, ProtocolError, VersionMismatchError
from kvlane.limits import CONTROL_MAJOR
from kvlane.namespace import Namespace
from kvlane.verbs.protocols import QpEndpoint

ENDPOINT = QpEndpoint(
    gid=bytes(range(16)), udp_port=4791, qp_num=0xFFFFFF, psn=0xFFFFFE, mtu_bytes=1024
)


def namespace_with_no_default() -> Namespace:
    """Every field differs from the default, and from every other field."""
    values: dict[str, object] = {}
    for index, field in enumerate(fields(Namespace)):
        if not field.name.startswith("hash_"):
            values[field.name] = 1000 + index if field.type == "int" else f"{field.name} é"
    return Namespace.from_mapping(values)


def test_namespace_and_its_message_have_the_same_fields() -> None:
    message_fields = control_pb2.Namespace.DESCRIPTOR.fields_by_name
    assert [field.name for field in fields(Namespace)] == list(message_fields)


def test_namespace_survives_the_wire() -> None:
    namespace = namespace_with_no_default()
    encoded = convert.namespace_message(namespace).SerializeToString()
    decoded = control_pb2.Namespace.FromString(encoded)
    assert convert.namespace_from_message(decoded) == namespace


def test_namespace_message_that_leaves_fields_out_is_not_completed_by_guesses() -> None:
    with pytest.raises(ConfigError, match="keys are made by"):
        convert.namespace_from_message(control_pb2.Namespace(name="n"))


def test_endpoint_and_its_message_have_the_same_fields() -> None:
    message_fields = control_pb2.QpEndpoint.DESCRIPTOR.fields_by_name
    assert [field.name for field in fields(QpEndpoint)] == list(message_fields)


def test_endpoint_survives_the_wire() -> None:
    encoded = convert.endpoint_message(ENDPOINT).SerializeToString()
    assert convert.endpoint_from_message(control_pb2.QpEndpoint.FromString(encoded)) == ENDPOINT


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("gid", b"\x7f\0\0\1", "gid has 4 bytes"),
        ("gid", bytes(17), "gid has 17 bytes"),
        ("udp_port", 0, "udp_port must be"),
        ("udp_port", 65536, "udp_port must be"),
        ("qp_num", 1 << 24, "qp_num is a 24-bit number"),
        ("psn", 1 << 24, "psn is a 24-bit number"),
        ("mtu_bytes", 1500, "no path MTU of 1500"),
    ],
)
def test_impossible_endpoint_is_refused_by_field(field: str, value: object, text: str) -> None:
    message = convert.endpoint_message(ENDPOINT)
    setattr(message, field, value)
    with pytest.raises(ProtocolError, match=text):
        convert.endpoint_from_message(message)


def test_version_survives_and_names_all_its_parts() -> None:
    assert convert.version_from_message(convert.version_message((3, 2, 1))) == (3, 2, 1)
    assert convert.version_from_message(convert.version_message()) == convert.CONTROL_VERSION


def test_other_minor_version_is_compatible() -> None:
    convert.require_same_major((CONTROL_MAJOR, 99, 99), "the peer")


@pytest.mark.parametrize("major", [CONTROL_MAJOR - 1, CONTROL_MAJOR + 1])
def test_other_major_version_is_refused_with_both_versions(major: int) -> None:
    with pytest.raises(VersionMismatchError) as caught:
        convert.require_same_major((major, 7, 8), "the peer")
    assert f"the peer speaks control version {major}.7.8" in str(caught.value)
    assert ".".join(map(str, convert.CONTROL_VERSION)) in str(caught.value)


@pytest.mark.parametrize("session_id", [0, 7, (1 << 64) - 1])
def test_session_name_is_parsed_back(session_id: int) -> None:
    assert convert.parse_session_name(convert.session_name(session_id)) == session_id


@pytest.mark.parametrize(
    "name",
    [
        "",
        "7",
        "sessions/",
        "sessions/-1",
        "sessions/07",
        "sessions/7\n",
        "sessions/7/x",
        "sessions/\u0667",
        "agents/7",
        f"sessions/{1 << 64}",
    ],
)
def test_other_names_are_refused_with_an_example(name: str) -> None:
    with pytest.raises(ProtocolError, match="one looks like sessions/7"):
        convert.parse_session_name(name)
