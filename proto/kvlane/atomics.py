"""Ordered loads and stores of 64-bit words by address, for memory that others write meanwhile.

The others are threads or processes. A plain load in a loop would be read once and never
again; these are read every time, and order what is read and written around them. Words are
aligned to 8 bytes. Interpreted, the machine's own order has to do (and the interpreter's lock).
"""

from __future__ import annotations

import ctypes
import platform
import threading
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvlane.jit import JIT_ENABLED

_WORD_BYTES = 8
_AARCH64_YIELD = 1

if JIT_ENABLED:

    def _word_pointer(context: Any, builder: Any, address: Any) -> Any:
        word = context.get_value_type(types.int64)
        return builder.inttoptr(address, word.as_pointer())

    @intrinsic  # type: ignore[untyped-decorator]
    def load_acquire(_typing_context: Any, _address: Any) -> Any:
        """The word at an address; nothing after this is read before it."""

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            pointer = _word_pointer(context, builder, args[0])
            return builder.load_atomic(pointer, "acquire", _WORD_BYTES)

        return types.int64(types.int64), codegen

    @intrinsic  # type: ignore[untyped-decorator]
    def store_release(_typing_context: Any, _address: Any, _value: Any) -> Any:
        """Write a word; whoever sees it sees all that was written before."""

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            pointer = _word_pointer(context, builder, args[0])
            builder.store_atomic(args[1], pointer, "release", _WORD_BYTES)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64), codegen

    @intrinsic  # type: ignore[untyped-decorator]
    def fetch_add(_typing_context: Any, _address: Any, _value: Any) -> Any:
        """Add to a word in one step; what it was before."""

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            pointer = _word_pointer(context, builder, args[0])
            return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

        return types.int64(types.int64, types.int64), codegen

    @intrinsic  # type: ignore[untyped-decorator]
    def full_fence(_typing_context: Any) -> Any:
        """No load after this comes before a store before it, as two that watch each other need."""

        def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return types.none(), codegen

    @intrinsic  # type: ignore[untyped-decorator]
    def spin_hint(_typing_context: Any) -> Any:
        """Tell the core that this is a loop that waits."""

        def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            nothing, hint = cgutils.ir.VoidType(), cgutils.ir.IntType(32)
            if platform.machine() == "x86_64":
                kind = cgutils.ir.FunctionType(nothing, [])
                name, operands = "llvm.x86.sse2.pause", []
            elif platform.machine() == "aarch64":
                kind = cgutils.ir.FunctionType(nothing, [hint])
                name, operands = "llvm.aarch64.hint", [hint(_AARCH64_YIELD)]
            else:
                return context.get_dummy_value()
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), operands)
            return context.get_dummy_value()

        return types.none(), codegen

    @intrinsic  # type: ignore[untyped-decorator]
    def prefetch(_typing_context: Any, _address: Any) -> Any:
        """Begin to fetch the cache line at an address, which may be any.

        Into the second cache: it can wait for many more lines at once than the first.
        """

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], cgutils.voidptr_t)
            flag = cgutils.ir.IntType(32)
            kind = cgutils.ir.FunctionType(cgutils.ir.VoidType(), [pointer.type, flag, flag, flag])
            function = cgutils.get_or_insert_function(
                builder.module, kind, "llvm.prefetch." + _POINTER_SUFFIX
            )
            read, keep, data = (flag(value) for value in (0, 2, 1))
            builder.call(function, [pointer, read, keep, data])
            return context.get_dummy_value()

        return types.none(types.int64), codegen

    _POINTER_SUFFIX = "p0" if str(cgutils.voidptr_t) == "ptr" else "p0i8"

else:
    _one_at_a_time = threading.Lock()

    def _word(address: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(int(address))

    def load_acquire(address: int) -> int:
        """The word at an address; nothing after this is read before it."""
        return _word(address).value

    def store_release(address: int, value: int) -> None:
        """Write a word; whoever sees it sees all that was written before."""
        _word(address).value = int(value)

    def fetch_add(address: int, value: int) -> int:
        """Add to a word in one step; what it was before."""
        # Between reading and writing the interpreter may let another thread run.
        with _one_at_a_time:
            word = _word(address)
            before = word.value
            word.value = before + int(value)
        return before

    def full_fence() -> None:
        """The interpreter reorders nothing."""

    def spin_hint() -> None:
        """Nothing to tell."""

    def prefetch(address: int) -> None:
        """Nothing to fetch."""
