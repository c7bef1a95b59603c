"""What a device takes from another process: sealed memory, and senders under their own name."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from emulator.pcie.control_socket import ControlSocket
from emulator.pcie.mapping import map_of_peer
from emulator.pcie.messages import Kind, Message
from kvlane.errors import ProtocolError, VerbsError

_SHRINK, _BOTH = fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@pytest.fixture
def control() -> Iterator[ControlSocket]:
    made = ControlSocket()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("seals", "size", "needed"),
    [(0, 8192, 8192), (_SHRINK, 8192, 8192), (_BOTH, 4096, 8192), (_BOTH, 0, None)],
)
def test_memory_that_could_shrink_or_is_too_small_is_refused(
    seals: int, size: int, needed: int | None
) -> None:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        with pytest.raises(ProtocolError, match="sealed"):
            map_of_peer(fd, needed)
    finally:
        os.close(fd)


def test_what_is_no_memfd_is_refused() -> None:
    read_end, write_end = os.pipe()
    try:
        with pytest.raises(ProtocolError, match="cannot be used"):
            map_of_peer(read_end)
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_message_names_its_sender(control: ControlSocket) -> None:
    other = ControlSocket()
    other.send(control.gid, Message(Kind.UNMAP, 7))
    (received,) = control.receive(8)
    assert (received.gid, received.pid, received.message.first) == (other.gid, os.getpid(), 7)
    other.close()
    with pytest.raises(VerbsError, match="no pcie device"):
        control.send(other.gid, Message(Kind.UNMAP, 7))


@pytest.mark.parametrize("says", [b"", b"-also-0123456789abcdef"])
@pytest.mark.parametrize("spell", [bytes.upper, lambda digits: digits[:2] + b" " + digits[2:]])
def test_nobody_takes_a_gid_by_spelling_it_otherwise(
    control: ControlSocket, spell: Callable[[bytes], bytes], says: bytes
) -> None:
    digits = spell(control.gid.hex().encode())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as impostor:
        impostor.bind(b"\0kvlane-pcie-" + digits + says)
        data = Message(Kind.UNMAP, 7).encode()
        impostor.sendto(data, b"\0kvlane-pcie-" + control.gid.hex().encode())
    assert list(control.receive(8)) == []


@pytest.mark.parametrize("data", [b"", b"kvlane", b"x" * 40, b"kvlane\0\2" + b"\xff" * 32])
def test_what_is_no_message_is_dropped(data: bytes) -> None:
    assert Message.decode(data) is None
