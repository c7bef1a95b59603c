"""The four import names are ours, and the fifth folder, proto/, takes no name at all."""

from __future__ import annotations

from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.repository import PACKAGES, ROOT


@pytest.mark.parametrize("name", PACKAGES)
def test_name_resolves_to_this_checkout(name: str) -> None:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None, f"{name} must be a regular package, with an __init__.py"
    assert Path(spec.origin).resolve() == PACKAGES[name] / "__init__.py"


@pytest.mark.parametrize("name", PACKAGES)
def test_no_other_distribution_claims_the_name(name: str) -> None:
    owners = set(packages_distributions().get(name, []))
    assert owners <= {"kvlane"}, f"uninstall {owners - {'kvlane'}}: they ship {name} as well"


def test_proto_is_a_source_root_and_no_package() -> None:
    # A package called `proto` would shadow proto-plus, and every Google client with it.
    assert not (ROOT / "proto" / "__init__.py").exists()
    spec = find_spec("proto")
    assert spec is not None
    assert spec.origin is not None, "proto-plus is installed for the tests and must win"
    assert ROOT / "proto" not in Path(spec.origin).parents
