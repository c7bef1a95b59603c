"""pyverbs is imported when a device is opened, and its absence is said with what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from emulator.pyverbs.config import FabricConfig
from emulator.pyverbs.loader import installed
from kvlane.errors import ConfigError
from kvlane.hardware.backend import open_device
from kvlane.hardware.binding import load_binding
from tests.support.repository import run_python

WITHOUT_PYVERBS = """
import sys
sys.modules["pyverbs"] = None  # as if it were not installed
from kvlane.errors import ConfigError
from kvlane.verbs.backends import open_device, options_type
options_type("pyverbs")
try:
    open_device("pyverbs", {})
except ConfigError as error:
    print(error)
print([name for name in sys.modules if name.startswith(("emulator", "dpu_agent", "host_driver"))])
"""


def test_without_pyverbs_options_are_known_and_opening_says_what_to_install(
    tmp_path: Path,
) -> None:
    done = run_python(["-c", WITHOUT_PYVERBS], cwd=tmp_path)
    told, others = done.stdout.strip().splitlines()
    assert "apt install python3-pyverbs" in told, done.stderr
    assert "pip install pyverbs" in told
    assert others == "[]"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise ImportError('libibverbs.so.1: no such file')", "cannot be loaded .*libibverbs1"),
        ("", "not complete .*pyverbs.addr|cannot be loaded"),
    ],
)
def test_a_broken_pyverbs_is_told_from_none(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyverbs").mkdir()
    (tmp_path / "pyverbs" / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pyverbs", raising=False)
    with pytest.raises(ConfigError, match=told):
        load_binding()
    sys.modules.pop("pyverbs", None)


def test_what_pyverbs_means_is_decided_at_each_opening() -> None:
    with installed(FabricConfig()):
        assert load_binding().cq.__name__ == "emulator.pyverbs.cq"
    assert "pyverbs.cq" not in sys.modules


def test_options_are_checked_before_pyverbs_is_looked_for() -> None:
    with pytest.raises(ConfigError, match="mtu_bytes"):
        open_device({"mtu_bytes": 3})
