"""The limits fit each other and the formats that carry them, also under ``python -O``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvlane import limits
from kvlane.capsule import (
    COMMAND_HEADER,
    DESCRIPTOR,
    RESPONSE_HEADER,
    Opcode,
    command_nbytes,
    results_nbytes,
)
from kvlane.verbs.protocols import QpOptions


def largest(dtype: np.dtype[Any], field: str) -> int:
    """The largest number that a field can carry."""
    assert dtype.fields is not None
    return int(np.iinfo(dtype.fields[field][0]).max)


def test_largest_command_fits_a_receive_buffer() -> None:
    most = limits.MAX_KEYS_PER_CAPSULE
    assert command_nbytes(most, most) <= limits.MAX_CAPSULE_BYTES


@pytest.mark.parametrize("opcode", Opcode)
def test_largest_response_fits_a_receive_buffer(opcode: Opcode) -> None:
    body = results_nbytes(opcode, limits.MAX_KEYS_PER_CAPSULE)
    assert RESPONSE_HEADER.itemsize + body <= limits.MAX_CAPSULE_BYTES


def test_limits_fit_the_fields_that_carry_them() -> None:
    for header in (COMMAND_HEADER, RESPONSE_HEADER):
        assert largest(header, "key_count") >= limits.MAX_KEYS_PER_CAPSULE
        assert largest(header, "length") >= limits.MAX_CAPSULE_BYTES
        assert largest(header, "version") >= limits.CAPSULE_VERSION
    assert largest(DESCRIPTOR, "length") >= limits.MAX_BLOCK_BYTES


def test_defaults_are_within_their_limits() -> None:
    assert 1 <= limits.DEFAULT_QUEUE_DEPTH <= limits.MAX_QUEUE_DEPTH
    assert 1 <= limits.MIN_BLOCK_BYTES <= limits.MAX_BLOCK_BYTES
    assert limits.CREDIT_SLACK > 0


def test_ports_are_ports_and_differ() -> None:
    ports = {limits.DEFAULT_CONTROL_PORT, limits.ROCE_V2_UDP_PORT}
    assert len(ports) == 2
    assert all(1024 <= port <= 65535 for port in ports)


def test_roce_port_is_the_assigned_one() -> None:
    # IANA: "ip over RoCEv2", as IBTA 1.7 annex A17.3.1.1 requires.
    assert limits.ROCE_V2_UDP_PORT == 4791


def test_default_queue_pair_takes_the_default_credits() -> None:
    depth = limits.DEFAULT_QUEUE_DEPTH + limits.CREDIT_SLACK
    assert QpOptions().max_recv_wr >= depth
