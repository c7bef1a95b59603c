"""Kernels that call kernels by address: how compiled code of one floor reaches another's.

A NIC or an eviction policy is a table of addresses, as ``ibv_context`` is in libibverbs. So
the loop that uses it is compiled once, knows only the table, and never comes back to Python
for a call. All functions have one shape: four 64-bit integers in, one out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from kvlane.jit import JIT_ENABLED, cached_in_our_folder

_SIGNATURE = types.int64(types.int64, types.int64, types.int64, types.int64)
PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
)
"""The shape of all of them for ctypes: also of Python functions that stand in for compiled
ones, which take the interpreter's lock for as long as they run."""


class Exported:
    """A kernel that has an address. It is compiled when that is first asked for."""

    def __init__(self, function: Callable[[int, int, int, int], int]) -> None:
        self._function = function
        self._entry: Any = None

    @property
    def address(self) -> int:
        """Where the machine code begins; valid as long as the process lives."""
        if self._entry is None:
            self._entry = self._compiled() if JIT_ENABLED else PROTOTYPE(self._function)
        if JIT_ENABLED:
            return int(self._entry.address)
        return ctypes.cast(self._entry, ctypes.c_void_p).value or 0

    def _compiled(self) -> CFunc:
        options = {"nopython": True, "error_model": "numpy"}
        compiled = CFunc(self._function, (_SIGNATURE.args, _SIGNATURE.return_type), {}, options)
        with cached_in_our_folder(compiled):
            compiled.enable_caching()
        compiled.compile()
        return compiled


def exported(function: Callable[[int, int, int, int], int]) -> Exported:
    """Give a function of a kernel module an address; it may call kernels and nothing else."""
    return Exported(function)


if JIT_ENABLED:

    @intrinsic  # type: ignore[untyped-decorator]
    def call(
        _typing_context: Any, _address: Any, _first: Any, _second: Any, _third: Any, _fourth: Any
    ) -> Any:
        """Call the function at an address with four integers."""

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            word = context.get_value_type(types.int64)
            kind = cgutils.ir.FunctionType(word, [word] * 4).as_pointer()
            return builder.call(builder.inttoptr(args[0], kind), args[1:])

        return types.int64(*(types.int64,) * 5), codegen

else:

    def call(address: int, first: int, second: int, third: int, fourth: int) -> int:
        """Call the function at an address with four integers."""
        result: int = PROTOTYPE(int(address))(int(first), int(second), int(third), int(fourth))
        return result


class Callbacks:
    """Python functions as calls by address.

    An exception cannot pass compiled code: the first is kept, and the call answers -1.
    """

    def __init__(self) -> None:
        self._entries: list[Any] = []
        self._fault: BaseException | None = None

    def add(self, function: Callable[[int, int, int, int], int]) -> int:
        """The address of a function, valid as long as this object lives."""

        def entry(first: int, second: int, third: int, fourth: int) -> int:
            try:
                return function(first, second, third, fourth)
            except BaseException as error:
                self._fault = self._fault or error
                return -1

        self._entries.append(PROTOTYPE(entry))
        return ctypes.cast(self._entries[-1], ctypes.c_void_p).value or 0

    def take_fault(self) -> BaseException | None:
        """The first exception since the last call of this."""
        fault, self._fault = self._fault, None
        return fault
