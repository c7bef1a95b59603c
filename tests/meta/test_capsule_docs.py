"""docs/capsules.md says what kvlane.capsule does: offsets, sizes, numbers and both examples."""

from __future__ import annotations

import re
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
import pytest

from kvlane import capsule, limits
from tests.support.capsule_vectors import RESPONSE_HEX, STORE_HEX
from tests.support.repository import ROOT

DOCUMENT = (ROOT / "docs" / "capsules.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text between a heading and the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", DOCUMENT, re.M | re.S)
    assert found is not None, f"docs/capsules.md has no section {title!r}"
    return found[1]


def rows(title: str) -> list[list[str]]:
    """The cells of the one table in a section, without its heading and rule."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


LAYOUTS: dict[str, np.dtype[Any]] = {
    "Command header": capsule.COMMAND_HEADER,
    "Descriptor": capsule.DESCRIPTOR,
    "Response header": capsule.RESPONSE_HEADER,
    "Key result": capsule.KEY_RESULT,
}


@pytest.mark.parametrize("title", LAYOUTS)
def test_table_has_every_field_at_its_place(title: str) -> None:
    dtype = LAYOUTS[title]
    assert dtype.fields is not None
    wanted = {name: (field[1], field[0].itemsize) for name, field in dtype.fields.items()}
    documented = {
        name.strip("`"): (int(offset), int(size))
        for offset, size, name, _ in rows(title)
        if name.startswith("`")
    }
    assert documented == wanted


@pytest.mark.parametrize("title", LAYOUTS)
def test_table_covers_every_byte_once(title: str) -> None:
    end = 0
    for offset, size, _, _ in rows(title):
        assert int(offset) == end
        end += int(size)
    assert end == LAYOUTS[title].itemsize


ENUMS: dict[str, type[IntEnum] | type[IntFlag]] = {
    "Opcodes": capsule.Opcode,
    "Flags": capsule.CommandFlags,
    "Command status": capsule.CommandStatus,
    "Key status": capsule.KeyStatus,
}


@pytest.mark.parametrize("title", ENUMS)
def test_table_has_every_member_with_its_number(title: str) -> None:
    documented = [(row[1].strip("`"), int(row[0], 0)) for row in rows(title)]
    assert documented == [(member.name, member.value) for member in ENUMS[title]]
    assert all(row[2] for row in rows(title))


def test_result_sizes_are_the_documented_ones() -> None:
    per_key = {
        "one [key result](#key-result) a key": capsule.KEY_RESULT.itemsize,
        "one status byte a key": 1,
        "none, `result` has the answer": 0,
    }
    for value, _, _, results in rows("Opcodes"):
        assert capsule.results_nbytes(int(value, 0), 8) == 8 * per_key[results]


def test_limits_are_the_documented_ones() -> None:
    named = {
        "MAX_CAPSULE_BYTES": limits.MAX_CAPSULE_BYTES,
        "MAX_KEYS_PER_CAPSULE": limits.MAX_KEYS_PER_CAPSULE,
        "CREDIT_SLACK": limits.CREDIT_SLACK,
    }
    text = " ".join(DOCUMENT.split())
    for name, value in named.items():
        before = text[: text.index(f"(`{name}`)")]
        assert int(re.findall(r"\d+", before)[-1]) == value
    assert f"The capsule version is {limits.CAPSULE_VERSION}." in text


def example(name: str) -> str:
    """The hex digits of a dump, whose addresses must count up by 16."""
    found = re.search(rf"^```hexdump {name}\n(.*?)^```", DOCUMENT, re.M | re.S)
    assert found is not None, f"docs/capsules.md has no hex dump {name!r}"
    digits = ""
    for number, line in enumerate(found[1].splitlines()):
        address, dump = line[:4], line[6:53]
        assert int(address, 16) == 16 * number
        digits += dump.replace(" ", "")
    return digits


@pytest.mark.parametrize(("name", "pinned"), [("command", STORE_HEX), ("response", RESPONSE_HEX)])
def test_example_is_the_golden_vector(name: str, pinned: str) -> None:
    assert example(name) == pinned


def test_agents_send_every_command_status_but_those_said_to_be_never_sent() -> None:
    answered = "".join(path.read_text() for path in (ROOT / "dpu_agent").rglob("*.py"))
    answered += (ROOT / "proto" / "kvlane" / "capsule.py").read_text()
    for _, name, meaning in rows("Command status"):
        is_sent = f"CommandStatus.{name.strip('`')}" in answered
        assert is_sent != ("never send" in meaning), name
