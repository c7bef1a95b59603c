"""The rendezvous: who listens is found, who has gone is not, and nobody else can pretend."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest

from emulator.cm.rendezvous import (
    EPHEMERAL_PORTS,
    MappedAddresses,
    Rendezvous,
    address_book,
    claim_any,
    default_folder,
)
from emulator.wire.ip_cm import PortSpace
from kvlane.errors import ConfigError, VerbsError

TCP, UDP = PortSpace.TCP, PortSpace.UDP
IP = IPv4Address("127.0.0.1")
GID = bytes(range(16))


@pytest.fixture
def book(tmp_path: Path) -> Rendezvous:
    return Rendezvous(tmp_path / "notes")


def test_a_listener_is_found_as_long_as_it_listens(book: Rendezvous) -> None:
    assert book.resolve(TCP, IP, 7471) is None
    claim = book.claim(TCP, IP, 7471, GID)
    assert book.resolve(TCP, IP, 7471) == GID
    claim.release()
    assert book.resolve(TCP, IP, 7471) is None


@pytest.mark.parametrize(
    ("space", "ip", "port"), [(UDP, IP, 7471), (TCP, IPv4Address("127.0.0.2"), 7471), (TCP, IP, 7)]
)
def test_only_at_its_address(
    book: Rendezvous, space: PortSpace, ip: IPv4Address, port: int
) -> None:
    book.claim(TCP, IP, 7471, GID)
    assert book.resolve(space, ip, port) is None


def test_an_address_has_one_listener(book: Rendezvous) -> None:
    claim = book.claim(TCP, IP, 7471, GID)
    with pytest.raises(VerbsError, match="port 7471"):
        book.claim(TCP, IP, 7471, bytes(16))
    assert book.resolve(TCP, IP, 7471) == GID
    claim.release()
    book.claim(TCP, IP, 7471, bytes(16))


@pytest.mark.parametrize(
    ("everywhere", "asked", "found"),
    [("0.0.0.0", "127.0.0.9", True), ("::", "::1", True), ("::", "127.0.0.9", False)],
)
def test_who_listens_at_all_addresses(
    book: Rendezvous, everywhere: str, asked: str, found: bool
) -> None:
    book.claim(TCP, ip_address(everywhere), 9, GID)
    assert book.resolve(TCP, ip_address(asked), 9) == (GID if found else None)


def test_releasing_twice_takes_nothing_from_the_next(book: Rendezvous) -> None:
    claim = book.claim(TCP, IP, 7471, GID)
    claim.release()
    book.claim(TCP, IP, 7471, bytes(16))
    claim.release()
    assert book.resolve(TCP, IP, 7471) == bytes(16)


def test_the_note_of_a_process_that_died_is_ignored(tmp_path: Path) -> None:
    book = Rendezvous(tmp_path / "notes")
    code = (
        "import os, sys; from pathlib import Path; from ipaddress import IPv4Address\n"
        "from emulator.cm.rendezvous import Rendezvous; from emulator.wire.ip_cm import PortSpace\n"
        "book = Rendezvous(Path(sys.argv[1]))\n"
        "claim = book.claim(PortSpace.TCP, IPv4Address('127.0.0.1'), 7471, bytes(range(16)))\n"
        "print('claimed', flush=True); sys.stdin.read(1); os._exit(0)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "notes")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"claimed\n"
    assert book.resolve(TCP, IP, 7471) == GID
    child.communicate(b"x")
    assert list((tmp_path / "notes").iterdir())
    assert book.resolve(TCP, IP, 7471) is None
    book.claim(TCP, IP, 7471, bytes(16))
    assert book.resolve(TCP, IP, 7471) == bytes(16)


def test_the_folder_is_private(book: Rendezvous, tmp_path: Path) -> None:
    book.claim(TCP, IP, 1, GID)
    assert (tmp_path / "notes").stat().st_mode & 0o777 == 0o700
    (tmp_path / "notes").chmod(0o755)
    with pytest.raises(ConfigError, match="0700"):
        book.claim(TCP, IP, 2, GID)


def test_a_link_in_place_of_the_folder_or_a_note_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "notes").symlink_to(tmp_path / "elsewhere")
    book = Rendezvous(tmp_path / "notes")
    with pytest.raises(ConfigError, match="of this user alone"):
        book.claim(TCP, IP, 1, GID)


def test_any_port(book: Rendezvous) -> None:
    first, _ = claim_any(book, TCP, IP, GID, 5)
    second, _ = claim_any(book, TCP, IP, GID, 5)
    assert (first, second) == (EPHEMERAL_PORTS[5], EPHEMERAL_PORTS[6])


def test_where_notes_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert default_folder() == tmp_path / f"kvlane-cm-{os.getuid()}"


def test_on_a_network_the_address_is_the_gid() -> None:
    book = address_book(gids_are_addresses=True)
    assert isinstance(book, MappedAddresses)
    assert book.resolve(TCP, IPv4Address("192.0.2.1"), 7) == bytes.fromhex(
        "00000000000000000000ffffc0000201"
    )
    assert book.resolve(TCP, IPv6Address("2001:db8::1"), 7) == IPv6Address("2001:db8::1").packed
    assert isinstance(address_book(gids_are_addresses=False), Rendezvous)
