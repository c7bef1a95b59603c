"""pyverbs as this backend uses it: imported when a device is opened, and never before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvlane.errors import ConfigError

_INSTALL = (
    "install it with `apt install python3-pyverbs` (Debian and Ubuntu; a virtual environment "
    "sees it when made with --system-site-packages) or `pip install pyverbs` (which builds "
    "rdma-core, so it needs a compiler, cmake and cython), or set verbs: emulator"
)


@dataclass(frozen=True, slots=True)
class Binding:
    """The modules of pyverbs; it has no types, so neither have they.

    They are fetched anew for each device, so that what ``import pyverbs`` means is decided
    when a device is opened.
    """

    addr: Any
    cq: Any
    device: Any
    mr: Any
    pd: Any
    qp: Any
    wr: Any
    error: type[Exception]
    """Root of what pyverbs raises (``PyverbsError``)."""


def load_binding() -> Binding:
    """Import pyverbs; ``ConfigError`` tells how to get it, or why it cannot be loaded."""
    try:
        from pyverbs import addr, cq, device, mr, pd, qp, wr
        from pyverbs.pyverbs_error import PyverbsError
    except ModuleNotFoundError as error:
        if error.name != "pyverbs":
            raise ConfigError(
                f"verbs: pyverbs is not complete here ({error}); {_INSTALL}"
            ) from error
        raise ConfigError(f"verbs: pyverbs is not installed here; {_INSTALL}") from error
    except ImportError as error:
        raise ConfigError(
            f"verbs: pyverbs cannot be loaded ({error}); it needs libibverbs of its own release "
            f"(packages libibverbs1 and ibverbs-providers on Debian and Ubuntu), or set "
            f"verbs: emulator"
        ) from error
    return Binding(addr, cq, device, mr, pd, qp, wr, PyverbsError)
