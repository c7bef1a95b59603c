"""Layouts as data: named ranges of bits and bytes of a fixed-size big-endian structure.

The messages of connection management have some ninety fields; a table of ranges for each
message is both its documentation and its codec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from emulator.wire.errors import WireError, require_bits, require_bytes

_S = TypeVar("_S", bound="Structure")


class Range(Protocol):
    """Where a field lies, and how it is read and written there."""

    def get(self, data: bytes) -> Any:
        """Read the field."""

    def put(self, data: bytearray, value: Any) -> None:
        """Write the field into zeroed ``data``."""

    def checked(self, value: Any, what: str) -> Any:
        """The value as it would be read back; ``WireError`` when it has no place here."""


class Bits(NamedTuple):
    """An unsigned number: ``width`` bits, the first of them ``bit`` bits into byte ``byte``."""

    byte: int
    width: int
    bit: int = 0

    @property
    def _end(self) -> int:
        return self.byte + -(-(self.bit + self.width) // 8)

    @property
    def _below(self) -> int:
        """Bits of the last byte that follow the field."""
        return -(self.bit + self.width) % 8

    def get(self, data: bytes) -> int:
        """Read the number."""
        word = int.from_bytes(data[self.byte : self._end], "big")
        return word >> self._below & (1 << self.width) - 1

    def put(self, data: bytearray, value: int) -> None:
        """Write the number beside its neighbours in the same bytes."""
        place = slice(self.byte, self._end)
        word = int.from_bytes(data[place], "big") | value << self._below
        data[place] = word.to_bytes(self._end - self.byte, "big")

    def checked(self, value: Any, what: str) -> Any:
        """The number, if it has no more bits than there are."""
        require_bits(value, self.width, what)
        return value


class Scattered(NamedTuple):
    """An unsigned number whose parts, highest first, lie apart."""

    parts: tuple[Bits, ...]

    def get(self, data: bytes) -> int:
        """Read the parts and join them."""
        value = 0
        for part in self.parts:
            value = value << part.width | part.get(data)
        return value

    def put(self, data: bytearray, value: int) -> None:
        """Write each part to its place."""
        for part in reversed(self.parts):
            part.put(data, value & (1 << part.width) - 1)
            value >>= part.width

    def checked(self, value: Any, what: str) -> Any:
        """The number, if it has no more bits than the parts together."""
        require_bits(value, sum(part.width for part in self.parts), what)
        return value


class Octets(NamedTuple):
    """Bytes; shorter ones are followed by zeros, as nothing on the wire tells their length."""

    byte: int
    nbytes: int

    def get(self, data: bytes) -> bytes:
        """All bytes of the range."""
        return bytes(data[self.byte : self.byte + self.nbytes])

    def put(self, data: bytearray, value: bytes) -> None:
        """Write them."""
        data[self.byte : self.byte + self.nbytes] = value

    def checked(self, value: Any, what: str) -> Any:
        """The bytes, padded to the full length."""
        if len(value) > self.nbytes:
            raise WireError(f"{what} has room for {self.nbytes} bytes, not {len(value)}")
        return bytes(value).ljust(self.nbytes, b"\0")


class Nested(NamedTuple):
    """A structure inside another."""

    byte: int
    kind: type[Structure]

    def get(self, data: bytes) -> Structure:
        """Parse the inner structure."""
        return self.kind.parse(data[self.byte : self.byte + self.kind.NBYTES])

    def put(self, data: bytearray, value: Structure) -> None:
        """Write the inner structure."""
        data[self.byte : self.byte + self.kind.NBYTES] = value.emit()

    def checked(self, value: Any, what: str) -> Any:  # noqa: ARG002
        """The structure, which cannot be illegal."""
        return value


class Structure:
    """Base of frozen dataclasses whose fields are those of ``LAYOUT``, by name."""

    __slots__ = ()

    NBYTES: ClassVar[int]
    LAYOUT: ClassVar[Mapping[str, Range]]

    def __post_init__(self) -> None:
        for name, place in self.LAYOUT.items():
            value = place.checked(getattr(self, name), f"{type(self).__name__} {name}")
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls: type[_S], data: bytes) -> _S:
        """Read the structure at the start of ``data``; reserved bits are ignored."""
        require_bytes(data, cls.NBYTES, cls.__name__)
        return cls(**{name: place.get(data) for name, place in cls.LAYOUT.items()})

    def emit(self) -> bytes:
        """Its bytes, reserved bits 0."""
        data = bytearray(self.NBYTES)
        for name, place in self.LAYOUT.items():
            place.put(data, getattr(self, name))
        return bytes(data)
