"""The emulated NIC behind the verbs protocols: closed objects act no more, misuse is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from emulator.backend import EmulatedDevice, open_device
from kvlane.errors import ConfigError, VerbsError
from kvlane.verbs.enums import AccessFlags, QpState
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, new_records


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    opened = open_device({"listen": "127.0.0.1:0"})
    yield opened
    opened.close()


def test_a_closed_queue_pair_takes_nothing_and_touches_no_other(device: EmulatedDevice) -> None:
    cq = device.create_cq(16)
    closed = device.create_qp(cq, QpOptions())
    endpoint = closed.endpoint
    closed.close()
    successor = device.create_qp(cq, QpOptions())
    for use in (
        lambda: closed.connect(endpoint),
        lambda: closed.post_send(new_records(SEND_WR, 1)),
        lambda: closed.post_recv(new_records(RECV_WR, 1)),
    ):
        with pytest.raises(VerbsError, match="closed"):
            use()
    closed.close()
    assert closed.state == QpState.RESET
    assert successor.state == QpState.INIT


def test_a_closed_completion_queue_cannot_be_polled(device: EmulatedDevice) -> None:
    cq = device.create_cq(16)
    cq.close()
    with pytest.raises(VerbsError, match="closed"):
        cq.poll(new_records(WC, 1))


@pytest.mark.parametrize("access", [AccessFlags.LOCAL_WRITE, AccessFlags.REMOTE_WRITE])
def test_read_only_memory_is_not_registered_for_writing(
    device: EmulatedDevice, access: AccessFlags
) -> None:
    memory = np.frombuffer(bytes(64), np.uint8)
    with pytest.raises(VerbsError, match="read-only"):
        device.register(memory, access)
    device.register(memory, AccessFlags.REMOTE_READ).close()


def test_remote_writing_needs_local_writing(device: EmulatedDevice) -> None:
    with pytest.raises(VerbsError, match="local write"):
        device.register(device.alloc(64), AccessFlags.REMOTE_WRITE)


def test_memory_with_gaps_is_not_registered(device: EmulatedDevice) -> None:
    with pytest.raises(VerbsError, match="contiguous"):
        device.register(np.zeros((8, 8), np.uint8)[:, ::2], AccessFlags.REMOTE_READ)


@pytest.mark.parametrize(
    "options", [{"ack_timeout_code": 32}, {"max_send_wr": 0}, {"retry_count": 8}]
)
def test_options_out_of_range_are_named(options: dict[str, int]) -> None:
    with pytest.raises(VerbsError, match=next(iter(options))):
        QpOptions(**options)


@pytest.mark.parametrize(
    "options",
    [{"lissten": "127.0.0.1:0"}, {"mtu_bytes": 1500}, {"faults": "drop=2"}, {"listen": "here"}],
)
def test_options_of_the_nic_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_device(options)
