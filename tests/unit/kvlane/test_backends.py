"""A verbs backend is looked up by name when it is opened, and nothing imports it before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kvlane.config import load_mapping
from kvlane.errors import ConfigError
from kvlane.verbs.backends import BACKENDS, open_device, options_type
from tests.support.repository import run_python

PROBE = """
from dataclasses import dataclass
from kvlane.config import setting
from kvlane.errors import ConfigError

@dataclass(frozen=True)
class options_type:
    gid: str = setting("::1", "Which.")

def open_device(options):
    if options.keys() - {"gid"}:
        raise ConfigError("device: only gid is known")
    return ("probe", options)
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend of its own, registered under a name."""
    (tmp_path / "backend_for_probing.py").write_text(PROBE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BACKENDS, "probe", "backend_for_probing")
    return "probe"


def test_backend_opens_with_the_options_unchanged(probe: str) -> None:
    options: Mapping[str, Any] = {"gid": "::1"}
    device: Any = open_device(probe, options)
    assert device[0] == "probe"
    assert device[1] is options


def test_backend_checks_its_own_options(probe: str) -> None:
    with pytest.raises(ConfigError, match="only gid is known"):
        open_device(probe, {"colour": "red"})


def test_unknown_backend_is_refused_with_those_there_are(probe: str) -> None:
    known = ", ".join(sorted(BACKENDS))
    for use in (lambda: open_device("mlx5", {}), lambda: options_type("mlx5")):
        with pytest.raises(ConfigError, match=f"'mlx5' is unknown; one of {known}$"):
            use()


def test_backend_tells_its_options(probe: str) -> None:
    assert [field.name for field in dataclasses.fields(options_type(probe))] == ["gid"]


@pytest.mark.parametrize("name", BACKENDS)
def test_every_listed_backend_offers_what_is_asked_of_it(name: str) -> None:
    assert callable(import_module(BACKENDS[name]).open_device)
    assert load_mapping(options_type(name), {}) == options_type(name)()


def test_table_imports_no_backend(tmp_path: Path) -> None:
    program = (
        "import sys; from kvlane.verbs.backends import BACKENDS\n"
        "print(sys.modules.keys() & set(BACKENDS.values()), 'emulator' in sys.modules)"
    )
    done = run_python(["-c", program], cwd=tmp_path)
    assert done.stdout.strip() == "set() False", done.stderr
