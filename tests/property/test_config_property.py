"""No text makes the loader raise anything but ConfigError, and what it renders it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvlane.config import BYTES, load_file, render, setting
from kvlane.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Inner:
    """A section."""

    size_bytes: int = setting(1, "A size.", unit=BYTES)
    text: str = setting("", "A text.")


@dataclass(frozen=True, slots=True)
class Outer:
    """Everything."""

    inner: Inner = Inner()
    number: float = setting(0.0, "A number.")
    options: Mapping[str, object] = setting({}, "Anything.")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "outer.yaml"


YAML_PIECES = st.sampled_from(
    [
        *("inner:", "text:", "number:", "options:", "size_bytes:", "<<:", "? ", "- ", "&a ", "*a"),
        *("!!int ", "!!float ", "!!bool ", "!!timestamp ", "!!binary ", "!!set ", "!!omap ", "!x "),
        *("1", "1e3", "0x", "1GiB", "~", "x", "2024-01-99", "1:2", '"', "'", "{", "}", "[", "]"),
        *("\n", "\n  ", " ", ", ", "|\n", ">\n", "#", "%YAML 9.9\n", "---\n", "..."),
    ]
)


@given(text=st.one_of(st.text(), st.lists(YAML_PIECES).map("".join)))
@example(text="number: !!bool x\n")
@example(text="number: !!int ''\n")
@example(text="number: !!timestamp x\n")
def test_any_text_loads_or_is_a_config_error(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    loaded: object = None
    try:
        loaded = load_file(Outer, path)
    except ConfigError as error:
        loaded = error
    assert isinstance(loaded, Outer) or str(path) in str(loaded)


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(TEXT, inner)),
    max_leaves=8,
)


@given(
    size=st.integers(0, 1 << 50).map(lambda size: size & ~0xFFF if size % 2 else size),
    text=TEXT,
    number=st.floats(allow_nan=False, allow_infinity=False),
    options=st.dictionaries(TEXT, PLAIN),
)
def test_what_is_rendered_loads_back(
    path: Path, size: int, text: str, number: float, options: dict[str, object]
) -> None:
    outer = Outer(Inner(size, text), number, options)
    path.write_text(render(outer), encoding="utf-8")
    assert load_file(Outer, path) == outer
