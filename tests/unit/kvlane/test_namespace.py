"""A descriptor has one encoding, and a difference in any field is refused by name."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from kvlane.errors import ConfigError, NamespaceMismatchError
from kvlane.namespace import HASH_ALGORITHM, HASH_VERSION, Namespace

FIELDS = [field.name for field in dataclasses.fields(Namespace)]
FIXED = ["hash_algorithm", "hash_version"]
"""Fields with one value that this version can serve."""


def changed(field: str) -> dict[str, Any]:
    """A value of a field that is not its default."""
    default = getattr(Namespace(), field)
    return {field: default + 1 if isinstance(default, int) else default + "x"}


def test_canonical_encoding_is_pinned() -> None:
    assert Namespace(model="mödel", block_tokens=16).canonical() == (
        b'{"block_bytes":0,"block_tokens":16,"context_rank":0,"context_size":1,'
        b'"engine_key_format":"","first_kv_head":0,"first_layer":0,"group":"",'
        b'"hash_algorithm":"blake2b-256","hash_version":1,"head_dim":0,"kv_dtype":"",'
        b'"layout":"","lora":"","model":"m\\u00f6del","name":"default","num_kv_heads":0,'
        b'"num_layers":0,"pipeline_rank":0,"pipeline_size":1,"quantization":"",'
        b'"tensor_rank":0,"tensor_size":1,"weights_version":""}'
    )


def test_canonical_encoding_holds_every_field() -> None:
    assert sorted(json.loads(Namespace().canonical())) == sorted(FIELDS)


@pytest.mark.parametrize("field", [name for name in FIELDS if name not in FIXED])
def test_difference_in_any_field_is_refused_by_name(field: str) -> None:
    stored = Namespace()
    offered = Namespace(**changed(field))
    assert offered.canonical() != stored.canonical()
    with pytest.raises(NamespaceMismatchError) as caught:
        stored.require_same(offered)
    mismatch = caught.value
    assert (mismatch.name, mismatch.field) == ("default", field)
    assert mismatch.stored == repr(getattr(stored, field))
    assert mismatch.offered == repr(getattr(offered, field))
    for part in (field, mismatch.stored, mismatch.offered):
        assert part in str(mismatch)


@pytest.mark.parametrize("field", FIXED)
def test_other_hash_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{HASH_ALGORITHM} version {HASH_VERSION}"):
        Namespace(**changed(field))


def test_same_descriptor_is_accepted() -> None:
    offered = Namespace(model="m", tensor_rank=3, tensor_size=4)
    Namespace(model="m", tensor_rank=3, tensor_size=4).require_same(offered)
    assert offered.canonical() == Namespace.from_mapping(dataclasses.asdict(offered)).canonical()


def test_mapping_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(ConfigError, match="'modle'"):
        Namespace.from_mapping({"modle": "m"})


# True and 1.0 equal 1 but are written otherwise, so equal descriptors would have two keys.
@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("num_layers", True, "int"),
        ("num_layers", 32.0, "int"),
        ("num_layers", "32", "int"),
        ("num_layers", np.int64(32), "int"),
        ("num_layers", None, "int"),
        ("model", 7, "str"),
        ("name", None, "str"),
        ("lora", b"a", "str"),
    ],
)
def test_value_of_another_type_is_refused(field: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be {expected}"):
        Namespace.from_mapping({field: value})
    with pytest.raises(ConfigError, match=f"{field} must be {expected}"):
        Namespace(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_number_that_the_control_plane_cannot_carry_is_refused(value: int) -> None:
    with pytest.raises(ConfigError, match=r"block_bytes must be 0 to 2\^32 - 1"):
        Namespace(block_bytes=value)


def test_largest_number_is_accepted() -> None:
    assert Namespace(block_bytes=(1 << 32) - 1).block_bytes == (1 << 32) - 1


@pytest.mark.parametrize("name", ["", "n" * 129, "a\nb", "a\0"])
def test_unprintable_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="printable name"):
        Namespace(name=name)


def test_longest_name_is_accepted() -> None:
    assert Namespace(name="n" * 128).name == "n" * 128


def test_text_that_no_message_can_carry_is_refused() -> None:
    with pytest.raises(ConfigError, match="model is not valid Unicode"):
        Namespace(model="llama\ud800")
