"""Configuration: frozen dataclasses that document themselves, read strictly from YAML.

A field is declared with ``setting``, which keeps its meaning, unit, range and rule of thumb
beside its default; a section is a field that is such a dataclass itself, documented by its
docstring. ``load_file`` and ``load_mapping`` accept nothing that the dataclass does
not name; ``render`` writes an effective configuration back, with the documentation.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import textwrap
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_origin, get_type_hints

import yaml

from kvlane.errors import ConfigError

T = TypeVar("T")

BYTES = "bytes"
"""The unit that makes a field a byte size: YAML may say ``1GiB`` for it."""

_METADATA_KEY = "kvlane.setting"
_COMMENT_COLUMNS = 88
_BYTE_UNITS = {
    "TiB": 1 << 40,
    "TB": 10**12,
    "GiB": 1 << 30,
    "GB": 10**9,
    "MiB": 1 << 20,
    "MB": 10**6,
    "KiB": 1 << 10,
    "kB": 10**3,
    "B": 1,
}
_KINDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
    type(None): "empty",
}
_EXACT_IN_A_FLOAT = 1 << 53


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of a field besides its type and default; kept in the field's metadata."""

    doc: str
    unit: str
    rule: str
    minimum: float | None
    maximum: float | None
    choices: Collection[str] | None
    check: Callable[[str], object] | None
    words: Mapping[str, int]

    def facts(self, default: object) -> str:
        """One line about unit, range, choices and default."""
        facts = [f"Unit: {self.unit}."] if self.unit else []
        if self.minimum is not None or self.maximum is not None:
            facts.append(f"Range: {self.range_text()}.")
        if self.choices is not None:
            facts.append(f"One of: {', '.join(sorted(self.choices))}.")
        facts += [f"{word} is {number}." for word, number in self.words.items()]
        facts.append(f"Default: {_plain(default, self.unit)}.")
        return " ".join(facts)

    def range_text(self) -> str:
        """``at least 1``, ``at most 9`` or ``1 to 9``, in the field's unit."""
        low, high = _plain(self.minimum, self.unit), _plain(self.maximum, self.unit)
        if self.maximum is None:
            return f"at least {low}"
        return f"at most {high}" if self.minimum is None else f"{low} to {high}"

    def admits(self, value: float) -> bool:
        """Whether a number is inside the range."""
        return (self.minimum is None or value >= self.minimum) and (
            self.maximum is None or value <= self.maximum
        )


def setting(  # noqa: PLR0913 - each is said of some setting, and by its name
    default: T,
    doc: str,
    *,
    unit: str = "",
    rule: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Collection[str] | None = None,
    check: Callable[[str], object] | None = None,
    words: Mapping[str, int] | None = None,
) -> T:
    """Declare a documented field of a configuration dataclass.

    Args:
        default: The value without configuration; of a mapping, each instance has a read-only
            copy.
        doc: What the field means.
        unit: Unit of a number; ``BYTES`` lets YAML say ``1GiB``.
        rule: Rule of thumb for choosing a value.
        minimum: Least number allowed.
        maximum: Greatest number allowed.
        choices: The texts allowed.
        check: Called with a text, raises ``ConfigError`` when it cannot be used.
        words: Words that may stand for some numbers, such as ``auto``.
    """
    about = Setting(doc, unit, rule, minimum, maximum, choices, check, words or {})
    metadata = {_METADATA_KEY: about}
    if isinstance(default, Mapping):
        mapping: Mapping[Any, Any] = default
        make = partial(_read_only, mapping)
        return cast(T, dataclasses.field(default_factory=make, metadata=metadata))
    return dataclasses.field(default=default, metadata=metadata)


def parse_bytes(size: object) -> int:
    """A size in bytes from an integer or a text such as ``64KiB``, ``1 GB`` or ``4096``."""
    if type(size) is int and size >= 0:
        return size
    found = re.fullmatch(r"([0-9]{1,19})\s*([A-Za-z]*)", size) if isinstance(size, str) else None
    if found is None or (found[2] and found[2] not in _BYTE_UNITS):
        raise ConfigError(
            f"{size!r} is not a size; write whole bytes, or a whole number with one of "
            f"{', '.join(_BYTE_UNITS)}"
        )
    return int(found[1]) * _BYTE_UNITS[found[2] or "B"]


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``; port 0 lets the system choose one."""
    found = re.fullmatch(r"(?:\[([^\[\]\s]+)\]|([^\[\]:\s]+)):([0-9]{1,5})", endpoint)
    if found is None or int(found[3]) > 65535:
        raise ConfigError(
            f"{endpoint!r} is not an endpoint; write host:port or [ipv6]:port with a port of "
            f"0 to 65535, such as 127.0.0.1:50057"
        )
    return found[1] or found[2], int(found[3])


def load_file(cls: type[T], path: str | Path) -> T:
    """An instance of ``cls`` from a YAML file; ``ConfigError`` names the file and what to do."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: there is no such file; name an existing one, or none to run on defaults"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); it must be a file that this user may read"
        ) from error
    return load_mapping(cls, _parse_yaml(text, str(path)), str(path))


def load_mapping(cls: type[T], mapping: Mapping[str, object], where: str = "agent.yaml") -> T:
    """An instance of ``cls``, a dataclass of settings, from names and values.

    Keys that are absent keep their defaults. ``ConfigError`` names ``where``, the dotted path
    of the offending key and what is expected. A method ``validate``, where the dataclass or a
    nested one has it, is called at the end and raises ``ConfigError`` for broken relations,
    with a text that starts with the name of a field.
    """
    return _build(cls, mapping, where, "")


def render(instance: object, details: Mapping[str, object] | None = None) -> str:
    """The configuration as YAML, each field under its documentation; loads back as equal.

    ``details`` gives, by the dotted path of a mapping, the dataclass of settings that was
    loaded from it: its fields are then shown in place of the bare mapping.
    """
    return "\n".join(_render_lines(instance, "", "", details or {})) + "\n"


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which by itself lets the last of two equal keys win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[tuple[str, object]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} appears twice", key.start_mark
                )
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def _parse_yaml(text: str, where: str) -> Mapping[str, object]:
    """The top mapping of a YAML document; an empty document is an empty mapping."""
    try:
        # The loader is a SafeLoader: it builds plain values only.
        document = yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise ConfigError(f"{where}:{place} {error.problem}; correct the YAML there") from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # PyYAML's scalar constructors raise the last three for a scalar that does not fit
        # its tag, such as the date 2024-99-99.
        raise ConfigError(f"{where}: not readable as YAML ({error}); correct it") from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{where}: must be a mapping of settings, not {_kind(type(document))}")
    return document


def _build(cls: type[T], mapping: Mapping[str, object], where: str, path: str) -> T:
    known = {field.name: field for field in dataclasses.fields(cast(Any, cls))}
    hints = get_type_hints(cls)
    values: dict[str, object] = {}
    for name, value in mapping.items():
        if name not in known:
            raise ConfigError(f"{where}: {_unknown_key(name, list(known), path)}")
        values[name] = _convert(value, known[name], hints[name], where, path)
    instance = cls(**values)
    validate = getattr(instance, "validate", None)
    if validate is not None:
        try:
            validate()
        except ConfigError as error:
            raise ConfigError(f"{where}: {path}{error}") from error
    return instance


def _unknown_key(name: object, known: list[str], path: str) -> str:
    nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
    return (
        f"{path}{name} is an unknown key; the nearest known one is {path}{nearest[0]} "
        f"(known here: {', '.join(known)})"
    )


def _convert(
    value: object, field: dataclasses.Field[Any], hint: Any, where: str, path: str
) -> object:
    """The value of one field, checked; a section that is left empty is an empty mapping."""
    name = path + field.name
    if dataclasses.is_dataclass(hint) or get_origin(hint) is Mapping:
        section = {} if value is None else value
        if not isinstance(section, Mapping):
            raise ConfigError(f"{where}: {name}: {value!r} is no mapping of settings")
        if dataclasses.is_dataclass(hint):
            return _build(cast(type[object], hint), section, where, name + ".")
        return _read_only(section)
    try:
        return _scalar(value, hint, field.metadata[_METADATA_KEY])
    except ConfigError as error:
        raise ConfigError(f"{where}: {name}: {error}") from error


def _scalar(value: object, hint: Any, about: Setting) -> object:
    if about.unit == BYTES:
        value = parse_bytes(value)
    if isinstance(value, str) and value in about.words:
        value = about.words[value]
    if hint is float and type(value) is int and abs(value) <= _EXACT_IN_A_FLOAT:
        value = float(value)
    # An exact comparison: YAML's true is an int to Python, and never meant as one.
    if type(value) is not hint:
        quotes = ", in quotes" if hint is str else ""
        raise ConfigError(f"{value!r} is {_kind(type(value))}; expected {_kind(hint)}{quotes}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{value!r} is not finite; expected {_kind(hint)}")
    if isinstance(value, (int, float)) and not about.admits(value):
        raise ConfigError(f"{value!r} is out of range; expected {about.range_text()}")
    if isinstance(value, str):
        if about.choices is not None and value not in about.choices:
            raise ConfigError(f"{value!r} is unknown; one of {', '.join(sorted(about.choices))}")
        if about.check is not None:
            about.check(value)
    return value


def _kind(cls: type) -> str:
    return _KINDS.get(cls, f"a {cls.__name__}")


def _render_lines(
    instance: Any, indent: str, path: str, details: Mapping[str, object]
) -> Iterator[str]:
    for field in dataclasses.fields(instance):
        value: Any = details.get(path + field.name, getattr(instance, field.name))
        if dataclasses.is_dataclass(value):
            yield from _comment(value.__doc__ or "", indent)
            yield f"{indent}{field.name}:"
            yield from _render_lines(value, indent + "  ", f"{path}{field.name}.", details)
            continue
        about: Setting = field.metadata[_METADATA_KEY]
        yield from _comment(about.doc, indent)
        yield from _comment(about.rule, indent)
        if field.default is not dataclasses.MISSING:
            yield from _comment(about.facts(field.default), indent)
        shown = _format_bytes(value) if about.unit == BYTES else _writable(value)
        dumped = yaml.safe_dump({field.name: shown}, sort_keys=False, width=math.inf)
        yield from (indent + line if line else line for line in dumped.rstrip("\n").split("\n"))


def _read_only(mapping: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """A copy that keeps a frozen dataclass frozen."""
    return MappingProxyType(dict(mapping))


def _writable(value: object) -> object:
    """A value as the YAML writer knows it."""
    return dict(value) if isinstance(value, MappingProxyType) else value


def _comment(text: str, indent: str) -> list[str]:
    head = indent + "# "
    return textwrap.wrap(text, _COMMENT_COLUMNS, initial_indent=head, subsequent_indent=head)


def _plain(value: object, unit: str) -> str:
    return str(_format_bytes(value) if unit == BYTES and isinstance(value, int) else value)


def _format_bytes(size: int) -> int | str:
    """An exact spelling for people: 1073741824 is ``1GiB``, 1000 stays 1000."""
    for suffix in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _BYTE_UNITS[suffix] == 0:
            return f"{size // _BYTE_UNITS[suffix]}{suffix}"
    return size
