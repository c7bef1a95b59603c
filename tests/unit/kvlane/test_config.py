"""The loader accepts what the dataclass names and nothing else, and every refusal names the
file, the dotted path, the value and what is expected."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from kvlane.config import (
    BYTES,
    load_file,
    load_mapping,
    parse_bytes,
    parse_endpoint,
    render,
    setting,
)
from kvlane.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Pool:
    """The memory pool."""

    size_bytes: int = setting(4096, "Size of the pool.", unit=BYTES, minimum=64, maximum=1 << 40)
    slots: int = setting(2, "Number of slots.", rule="One for each worker.", minimum=1)

    def validate(self) -> None:
        if self.size_bytes < self.slots:
            raise ConfigError(f"size_bytes ({self.size_bytes}) must be at least slots")


@dataclass(frozen=True, slots=True)
class Node:
    """A whole configuration with every kind of field."""

    pool: Pool = Pool()
    listen: str = setting("127.0.0.1:1", "Where to listen.", check=parse_endpoint)
    mode: str = setting("fast", "How to run.", choices=("fast", "safe"))
    ratio: float = setting(0.5, "Share of the pool.", minimum=0.0, maximum=1.0)
    factor: float = setting(1.0, "Any factor.")
    retries: int = setting(3, "Attempts.", maximum=9)
    verbose: bool = setting(False, "Say more.")
    options: Mapping[str, object] = setting({}, "Whatever the backend takes.")


def refusal(mapping: Mapping[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_mapping(Node, mapping, "node.yaml")
    return str(caught.value)


def refusal_of_file(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_file(Node, path)
    return str(caught.value)


def test_nothing_configured_gives_the_defaults() -> None:
    assert load_mapping(Node, {}) == Node()


def test_sections_left_empty_give_the_defaults() -> None:
    assert load_mapping(Node, {"pool": None, "options": None}) == Node()


def test_every_kind_of_value_is_taken() -> None:
    node = load_mapping(
        Node,
        {
            "pool": {"size_bytes": "1MiB", "slots": 5},
            "listen": "[::1]:0",
            "mode": "safe",
            "ratio": 1,
            "factor": -2.5,
            "retries": -4,
            "verbose": True,
            "options": {"queue": {"depth": [1, 2]}},
        },
    )
    assert node == Node(
        pool=Pool(size_bytes=1 << 20, slots=5),
        listen="[::1]:0",
        mode="safe",
        ratio=1.0,
        factor=-2.5,
        retries=-4,
        verbose=True,
        options={"queue": {"depth": [1, 2]}},
    )
    assert type(node.ratio) is float


def test_mappings_are_as_frozen_as_the_rest() -> None:
    given: dict[str, object] = {"depth": 1}
    for node in (Node(), load_mapping(Node, {"options": given})):
        with pytest.raises(TypeError):
            node.options["depth"] = 2  # type: ignore[index]
    node = load_mapping(Node, {"options": given})
    given["depth"] = 2
    assert node.options == {"depth": 1}


def test_unknown_key_is_named_with_its_path_and_the_nearest_one() -> None:
    text = refusal({"pool": {"slot": 1}})
    assert text.startswith("node.yaml: pool.slot is an unknown key")
    assert "pool.slots" in text


def test_unknown_key_that_is_like_nothing_lists_what_is_known() -> None:
    text = refusal({7: 1})  # type: ignore[dict-item]
    assert text.startswith("node.yaml: 7 is an unknown key")
    assert all(field.name in text for field in dataclasses.fields(Node))


@pytest.mark.parametrize(
    ("mapping", "path", "value", "expected"),
    [
        ({"retries": "3"}, "retries", "'3'", "a whole number"),
        ({"retries": True}, "retries", "True", "a whole number"),
        ({"retries": 3.0}, "retries", "3.0", "a whole number"),
        ({"retries": None}, "retries", "None", "a whole number"),
        ({"retries": [3]}, "retries", "[3]", "a whole number"),
        ({"retries": 10}, "retries", "10", "at most 9"),
        ({"pool": {"slots": 0}}, "pool.slots", "0", "at least 1"),
        ({"ratio": 1.5}, "ratio", "1.5", "0.0 to 1.0"),
        ({"ratio": "half"}, "ratio", "'half'", "a number"),
        ({"factor": float("nan")}, "factor", "nan", "a number"),
        ({"factor": float("inf")}, "factor", "inf", "a number"),
        ({"factor": 10**400}, "factor", "1000", "a number"),
        ({"verbose": 1}, "verbose", "1", "true or false"),
        ({"mode": False}, "mode", "False", "text, in quotes"),
        ({"mode": "slow"}, "mode", "'slow'", "fast, safe"),
        ({"listen": "nowhere"}, "listen", "'nowhere'", "host:port"),
        ({"pool": 5}, "pool", "5", "mapping"),
        ({"options": ["a"]}, "options", "['a']", "mapping"),
        ({"pool": {"size_bytes": "2XB"}}, "pool.size_bytes", "'2XB'", "GiB"),
        ({"pool": {"size_bytes": 63}}, "pool.size_bytes", "63", "64 to 1TiB"),
        ({"pool": {"size_bytes": "2TiB"}}, "pool.size_bytes", "2199023255552", "64 to 1TiB"),
    ],
)
def test_wrong_value_is_named_with_what_is_expected(
    mapping: Mapping[str, object], path: str, value: str, expected: str
) -> None:
    text = refusal(mapping)
    assert text.startswith(f"node.yaml: {path}: ")
    assert value in text
    assert expected in text


@pytest.mark.parametrize(
    "mapping",
    [
        {"ratio": 0},
        {"ratio": 1.0},
        {"pool": {"size_bytes": 64}},
        {"pool": {"size_bytes": "1TiB"}},
        {"retries": 9},
    ],
)
def test_ends_of_a_range_belong_to_it(mapping: Mapping[str, object]) -> None:
    assert load_mapping(Node, mapping) != Node()


def test_broken_relation_is_named_with_its_section() -> None:
    text = refusal({"pool": {"size_bytes": 100, "slots": 200}})
    assert text == "node.yaml: pool.size_bytes (100) must be at least slots"


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("10B", 10),
        ("64 KiB", 65536),
        ("1kB", 1000),
        ("3MiB", 3 << 20),
        ("3MB", 3_000_000),
        ("1GiB", 1 << 30),
        ("1GB", 10**9),
        ("2TiB", 2 << 40),
        ("2TB", 2 * 10**12),
    ],
)
def test_byte_sizes(size: object, nbytes: int) -> None:
    assert parse_bytes(size) == nbytes


@pytest.mark.parametrize(
    "size", [-1, True, 1.5, None, "", "GiB", "-1", "1.5GiB", "1gb", "1Gb", "1 G", "٣MB", "9" * 5000]
)
def test_what_is_no_byte_size_is_refused(size: object) -> None:
    with pytest.raises(ConfigError, match=r"is not a size; write .*GiB.*B$"):
        parse_bytes(size)


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [
        ("127.0.0.1:50057", "127.0.0.1", 50057),
        ("localhost:0", "localhost", 0),
        ("dpu-7.rack.example:65535", "dpu-7.rack.example", 65535),
        ("[::1]:80", "::1", 80),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
    ],
)
def test_endpoints(endpoint: str, host: str, port: int) -> None:
    assert parse_endpoint(endpoint) == (host, port)


@pytest.mark.parametrize(
    "endpoint",
    ["", "host", "host:", ":80", "host:65536", "host:-1", "host:http", "::1:80", "[::1]", "a b:1"],
)
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_endpoint(endpoint)


def test_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("pool:\n  size_bytes: 1GiB\nlisten: localhost:7\n")
    node = load_file(Node, path)
    assert (node.pool.size_bytes, node.listen) == (1 << 30, "localhost:7")


def test_file_of_comments_gives_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("# nothing yet\n")
    assert load_file(Node, path) == Node()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"retries: 1\nmode: safe\nretries: 2\n", "line 3, column 1: the key 'retries' appears"),
        (b"pool:\n  slots: 1\n  'slots': 2\n", "line 3, column 3: the key 'slots' appears"),
        (b"options: {a: {b: 1, b: 2}}\n", "the key 'b' appears twice"),
        (b"pool: [1\n", "line 2, column 1: "),
        (b"retries: 1\n---\nretries: 2\n", "line 2"),
        (b"when: 2024-99-99\n", "not readable as YAML"),
        (b"mode: !!python/object:os.system x\n", "line 1"),
        (b"mode: \x07\n", "not readable as YAML"),
        (b"mode: \xff\n", "not UTF-8 at byte 6"),
        (b"- retries\n", "must be a mapping of settings, not a list"),
        (b"just words\n", "must be a mapping of settings, not text"),
    ],
)
def test_unreadable_file_is_named_with_the_place(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "node.yaml"
    path.write_bytes(content)
    text = refusal_of_file(path)
    assert text.startswith(f"{path}:")
    assert complaint in text


def test_missing_file_says_what_to_do(tmp_path: Path) -> None:
    text = refusal_of_file(tmp_path / "none.yaml")
    assert text.startswith(f"{tmp_path / 'none.yaml'}: there is no such file; name")


def test_folder_says_what_to_do(tmp_path: Path) -> None:
    assert refusal_of_file(tmp_path).startswith(f"{tmp_path}: cannot be read")


def test_file_is_named_in_what_its_values_do_wrong(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("pool: {slots: many}\n")
    assert refusal_of_file(path).startswith(f"{path}: pool.slots: 'many'")


def test_merge_keys_are_not_mistaken_for_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("options: {base: &b {x: 1, y: 2}, more: {<<: *b, y: 3}}\n")
    assert load_file(Node, path).options["more"] == {"x": 1, "y": 3}


CHANGED = Node(
    pool=Pool(size_bytes=3 << 20, slots=4097),
    mode="safe",
    factor=-1e30,
    verbose=True,
    options={"name": "no", "path": "a: b # c", "depth": {"of": [1, None, "1GiB"]}},
)


@pytest.mark.parametrize("node", [Node(), CHANGED])
def test_rendered_configuration_loads_back(node: Node) -> None:
    assert load_mapping(Node, yaml.safe_load(render(node))) == node


def test_every_field_stands_under_its_documentation() -> None:
    assert render(Pool(size_bytes=1 << 20)) == (
        "# Size of the pool.\n"
        "# Unit: bytes. Range: 64 to 1TiB. Default: 4KiB.\n"
        "size_bytes: 1MiB\n"
        "# Number of slots.\n"
        "# One for each worker.\n"
        "# Range: at least 1. Default: 2.\n"
        "slots: 2\n"
    )


def test_sections_stand_under_their_docstring_and_choices_are_listed() -> None:
    lines = render(Node()).splitlines()
    assert lines[:3] == ["# The memory pool.", "pool:", "  # Size of the pool."]
    assert lines[lines.index("mode: fast") - 1] == "# One of: fast, safe. Default: fast."


def test_a_mapping_is_shown_by_the_settings_that_it_was_loaded_into() -> None:
    node = load_mapping(Node, {"options": {"slots": 7}})
    text = render(node, {"options": load_mapping(Pool, node.options)})
    shown = text[text.index("# The memory pool.\noptions:\n") :].splitlines()
    assert shown[1:4] == [
        "options:",
        "  # Size of the pool.",
        "  # Unit: bytes. Range: 64 to 1TiB. Default: 4KiB.",
    ]
    assert load_mapping(Node, yaml.safe_load(text)).options == {"size_bytes": "4KiB", "slots": 7}


@dataclass(frozen=True)
class Wordy:
    """One number that may be a word."""

    row: int = setting(-1, "A row.", minimum=-1, maximum=9, words={"auto": -1, "last": 9})


@pytest.mark.parametrize(("written", "row"), [("auto", -1), ("last", 9), (3, 3)])
def test_a_word_stands_for_its_number(written: object, row: int) -> None:
    assert load_mapping(Wordy, {"row": written}).row == row
    assert "auto is -1. last is 9." in " ".join(render(Wordy(row=row)).replace("#", "").split())


@pytest.mark.parametrize("written", ["Auto", "first", "", "3"])
def test_no_other_word_does(written: str) -> None:
    with pytest.raises(ConfigError, match=r"row.*whole number"):
        load_mapping(Wordy, {"row": written})
