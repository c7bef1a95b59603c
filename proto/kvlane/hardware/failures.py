"""The one place where an errno of libibverbs becomes an error of the project.

What an errno means depends on what was being done: ENOMEM of a registration is the limit of
locked memory, of a post it is a full queue. So each kind of call has a table of hints.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvlane.errors import QueueFullError, VerbsError
from kvlane.hardware.binding import Binding


@dataclass(frozen=True, slots=True)
class Call:
    """A kind of call: what an errno of it means."""

    hints: Mapping[int, str] = field(default_factory=dict)
    """errno -> what to do about it."""
    errors: Mapping[int, type[VerbsError]] = field(default_factory=dict)
    """errno -> class of the error, where it is a special one."""


"""errno -> what to do about it."""

_NO_CODE = -1
"""As ``error_code``: pyverbs knows none."""
_GONE = "the device is gone or was reset; see `dmesg`, and start again when it is back"
_LIMIT = "the device or the system has no more of them; lower the depth or the number in use"
_ANY = {errno.ENODEV: _GONE, errno.EIO: _GONE}
_NO_ACCESS = (
    "this process may not use /dev/infiniband/uverbs*; give its user access, pass the device "
    "nodes into the container, and set PrivateDevices=no in a systemd unit"
)
_NO_DESCRIPTOR = "too many open files; raise the limit (ulimit -n, LimitNOFILE)"
_UNREACHABLE = (
    "no neighbour answers at that address; check the route, `ping` from the network interface of "
    "this GID, and that gid_index of both ends names addresses of one network"
)

OPENING = Call(
    {
        errno.EACCES: _NO_ACCESS,
        errno.EPERM: _NO_ACCESS,
        errno.ENOENT: _NO_ACCESS,
        errno.EMFILE: _NO_DESCRIPTOR,
    }
)
CREATING = Call(
    {
        errno.ENOMEM: _LIMIT,
        errno.EINVAL: "the device does not take these sizes; lower the depth",
        errno.EMFILE: _NO_DESCRIPTOR,
    }
)
REGISTERING = Call(
    {
        errno.ENOMEM: "the limit of locked memory is reached; raise it (ulimit -l unlimited, "
        "LimitMEMLOCK=infinity) or register less",
        errno.EFAULT: "the memory is not mapped, or is mapped read-only",
        errno.EINVAL: "the device does not offer this access to this memory",
        errno.EOPNOTSUPP: "the device does not offer this access to this memory",
    }
)
CONNECTING = Call(
    {
        errno.ETIMEDOUT: _UNREACHABLE,
        errno.EHOSTUNREACH: _UNREACHABLE,
        errno.ENETUNREACH: _UNREACHABLE,
        errno.EINVAL: "the device refuses the peer's parameters; check that the GIDs of both ends "
        "are RoCE v2, and that the queue pair was not connected before",
    }
)
DESTROYING = Call({errno.EBUSY: "something that uses it is still open; close that first"})
POSTING = Call(
    {errno.EINVAL: "the device refuses such a request, or the queue pair's state"},
    {errno.ENOMEM: QueueFullError},
)
WORKING = Call()


@contextmanager
def failing(binding: Binding, doing: str, call: Call) -> Iterator[None]:
    """Errors of pyverbs inside the block become ``VerbsError``: what failed, why, what to do."""
    try:
        yield
    except binding.error as error:
        code = errno_of(error)
        hint = call.hints.get(code) or _ANY.get(code)
        advice = f"; {hint}" if hint else ""
        raise call.errors.get(code, VerbsError)(f"{doing} failed ({error}){advice}") from error


def errno_of(error: Exception) -> int:
    """The errno that pyverbs tells, 0 without one; some of its calls give it negated."""
    code = int(getattr(error, "error_code", _NO_CODE))
    return 0 if code == _NO_CODE else abs(code)
