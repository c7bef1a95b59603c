"""Attributes that behave like the integer fields of a C structure."""

from __future__ import annotations

from typing import Any, overload

from emulator.pyverbs.base import PyverbsCM


class PlainObject(PyverbsCM):
    """A context manager by its interface only: it holds nothing of a device."""

    def __del__(self) -> None:
        """Nothing needs closing."""


class Field:
    """An integer of ``bits`` bits: anything with ``__int__`` but text may be assigned.

    ``TypeError`` for what is no number and ``OverflowError`` for what does not fit, as
    compiled bindings have it. Reading gives ``default`` until something is assigned.
    """

    def __init__(self, bits: int, *, signed: bool = False, default: int = 0) -> None:
        self._low = -(1 << (bits - 1)) if signed else 0
        self._high = (1 << (bits - 1)) if signed else 1 << bits
        self._default = default

        self._name = "value"
        self._slot = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._slot = f"_{name}_field"

    @overload
    def __get__(self, instance: None, owner: type) -> Field: ...
    @overload
    def __get__(self, instance: object, owner: type) -> int: ...
    def __get__(self, instance: object | None, owner: type) -> Field | int:
        if instance is None:
            return self
        value: int = instance.__dict__.get(self._slot, self._default)
        return value

    def __set__(self, instance: object, value: Any) -> None:
        instance.__dict__[self._slot] = self.convert(value)

    def convert(self, value: Any) -> int:
        """What the field holds after the assignment of ``value``."""
        if isinstance(value, (str, bytes)) or not hasattr(value, "__int__"):
            raise TypeError(f"{self._name}: an integer is required, not {type(value).__name__}")
        number = int(value)
        if not self._low <= number < self._high:
            raise OverflowError(f"{self._name}: {number} does not fit")
        return number


def u8() -> Field:
    """A ``uint8_t``."""
    return Field(8)


def u16() -> Field:
    """A ``uint16_t``."""
    return Field(16)


def u32(default: int = 0) -> Field:
    """A ``uint32_t``."""
    return Field(32, default=default)


def u64() -> Field:
    """A ``uint64_t``."""
    return Field(64)


def i32() -> Field:
    """An ``int``."""
    return Field(32, signed=True)


def signed64(value: int) -> int:
    """The engine's form of an unsigned 64-bit number; its records have signed fields."""
    return value - (1 << 64) if value >> 63 else value


def unsigned64(value: int) -> int:
    """The reverse of ``signed64``."""
    return value & 0xFFFF_FFFF_FFFF_FFFF


def text_lines(*lines: tuple[str, object], width: int = 22, indent: int = 0) -> str:
    """A table of labels and values, one pair a line, for people."""
    margin = " " * indent
    return "".join(f"{margin}{label:{width}}: {value!s:<20}\n" for label, value in lines)
