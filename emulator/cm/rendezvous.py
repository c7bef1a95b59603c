"""How the port that serves an IP address and a port number is found.

A RoCE network asks nobody: the IP address is the GID (``MappedAddresses``). The GIDs of
emulated devices on one machine carry sockets instead, of which an IP address tells nothing,
so listeners leave a note (``Rendezvous``).

The notes are files in ``kvlane-cm-<uid>`` under the directory for temporary files (TMPDIR
chooses another); the folder belongs to the user alone. A file is named
``<port space>-<IP address>-<port>`` and holds the GID in hexadecimal. The listener keeps it
locked (flock) and removes it in the end. A file that is not locked was left by a process that
died, and counts as absent.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
import weakref
from contextlib import suppress
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Protocol

from emulator.link.gid import GID_BYTES, ipv4_gid
from emulator.wire.ip_cm import IpAddress, PortSpace
from kvlane.errors import CapacityError, ConfigError, VerbsError

EPHEMERAL_PORTS = range(32768, 61000)
"""What a listener may be given that asks for any port."""

_LOCK_TRIES = 20
_LOCK_PAUSE_S = 0.001


class Claim(Protocol):
    """The right to serve an address."""

    def release(self) -> None:
        """Give it back."""


class AddressBook(Protocol):
    """Which port serves an address."""

    def claim(self, space: PortSpace, ip: IpAddress, port: int, gid: bytes) -> Claim:
        """Serve an address from the port of a GID; ``VerbsError`` when somebody does."""

    def resolve(self, space: PortSpace, ip: IpAddress, port: int) -> bytes | None:
        """The GID of the port that serves an address; ``None`` when nobody does."""


class _NoClaim:
    """Nothing to give back."""

    def release(self) -> None:
        """Nothing."""


class MappedAddresses:
    """On a network where IP addresses are GIDs; who listens, only the addressed port knows."""

    def claim(
        self,
        space: PortSpace,  # noqa: ARG002
        ip: IpAddress,  # noqa: ARG002
        port: int,  # noqa: ARG002
        gid: bytes,  # noqa: ARG002
    ) -> Claim:
        """Always: the port itself sees to it that a service has one listener."""
        return _NoClaim()

    def resolve(self, space: PortSpace, ip: IpAddress, port: int) -> bytes | None:  # noqa: ARG002
        """The address as a GID."""
        return ipv4_gid(ip) if isinstance(ip, IPv4Address) else ip.packed


class Note:
    """A file of the rendezvous, locked as long as it counts."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        _notes.add(self)

    def release(self) -> None:
        """Remove the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # Before the lock goes, or the next listener's file could be the one removed.
            with suppress(FileNotFoundError):
                self._path.unlink()
            os.close(fd)

    def after_fork_in_child(self) -> None:
        """The note is the parent's: a lock kept here would outlive it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_notes: weakref.WeakSet[Note] = weakref.WeakSet()


def _leave_notes_to_parent() -> None:
    for note in list(_notes):
        note.after_fork_in_child()


os.register_at_fork(after_in_child=_leave_notes_to_parent)


class Rendezvous:
    """Notes of the listeners on this machine, of one user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, space: PortSpace, ip: IpAddress, port: int, gid: bytes) -> Claim:
        """Leave a note for an address."""
        self._make_folder()
        path = self._path(space, ip, port)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if not _lock_patiently(fd):
                os.close(fd)
                raise VerbsError(f"somebody listens at {ip} port {port} already")
            if _is_at(path, fd):
                break
            os.close(fd)  # its last owner removed it in between
        os.ftruncate(fd, 0)
        os.pwrite(fd, gid.hex().encode(), 0)
        return Note(path, fd)

    def resolve(self, space: PortSpace, ip: IpAddress, port: int) -> bytes | None:
        """Read the note for an address, or for all addresses."""
        everywhere = ip_address("0.0.0.0" if ip.version == 4 else "::")
        for asked in (ip, everywhere):
            gid = _read(self._path(space, asked, port))
            if gid is not None:
                return gid
        return None

    def _path(self, space: PortSpace, ip: IpAddress, port: int) -> Path:
        return self._folder / f"{space.name.lower()}-{ip}-{port}"

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        found = self._folder.lstat()
        private = stat.S_IMODE(found.st_mode) & 0o077 == 0
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or not private:
            raise ConfigError(
                f"{self._folder} must be a folder of this user alone (mode 0700); remove it, or "
                f"set TMPDIR to a folder of your own"
            )


def _read(path: Path) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_uid != os.getuid() or _lock(fd, fcntl.LOCK_SH):
            return None
        text = os.pread(fd, 2 * GID_BYTES, 0)
    finally:
        os.close(fd)
    return bytes.fromhex(text.decode()) if len(text) == 2 * GID_BYTES else None


def _lock(fd: int, kind: int) -> bool:
    """Lock a file, if nobody else has."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_patiently(fd: int) -> bool:
    """Lock a file for oneself; a reader holds it for a moment only, a listener for long."""
    for _ in range(_LOCK_TRIES):
        if _lock(fd, fcntl.LOCK_EX):
            return True
        time.sleep(_LOCK_PAUSE_S)
    return False


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def default_folder() -> Path:
    """Where the notes of this user are."""
    return Path(tempfile.gettempdir()) / f"kvlane-cm-{os.getuid()}"


def address_book(*, gids_are_addresses: bool) -> AddressBook:
    """The one for devices whose GIDs are IP addresses, or carry sockets instead."""
    return MappedAddresses() if gids_are_addresses else Rendezvous(default_folder())


def claim_any(
    book: AddressBook, space: PortSpace, ip: IpAddress, gid: bytes, start: int
) -> tuple[int, Claim]:
    """Claim any free port of an address, beginning to look at the ``start``-th."""
    count = len(EPHEMERAL_PORTS)
    for offset in range(count):
        port = EPHEMERAL_PORTS[(start + offset) % count]
        with suppress(VerbsError):
            return port, book.claim(space, ip, port, gid)
    raise CapacityError(f"all {count} ephemeral ports of {ip} are taken")
