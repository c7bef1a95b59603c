"""The import hook: ``pyverbs`` is the emulator's inside a block, and what it was outside."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

import emulator.pyverbs.device
import emulator.pyverbs.mr
import emulator.pyverbs.pd
from emulator.pyverbs import devices, fabric
from emulator.pyverbs.loader import import_hook
from kvlane.errors import ConfigError

MODULES = [
    *("addr", "base", "cq", "device", "dma_util", "dmabuf", "flow", "fork", "mem_alloc", "mr"),
    *("libibverbs_enums", "librdmacm_enums", "pd", "pyverbs_error", "qp", "spec", "srq"),
    *("utils", "wq", "wr", "xrcd", "providers", "providers.mlx5.mlx5dv", "providers.efa.efadv"),
]


def pyverbs_modules() -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] == "pyverbs"]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_the_same_object_under_both_names(name: str) -> None:
    with import_hook():
        foreign = importlib.import_module(f"pyverbs.{name}")
    assert foreign is importlib.import_module(f"emulator.pyverbs.{name}")


def test_a_module_keeps_its_own_name_and_spec() -> None:
    with import_hook():
        importlib.import_module("pyverbs.device")
    spec = emulator.pyverbs.device.__spec__
    assert spec is not None
    assert spec.name == "emulator.pyverbs.device"
    assert emulator.pyverbs.device.__name__ == "emulator.pyverbs.device"


def test_every_form_of_import_works() -> None:
    with import_hook():
        import pyverbs.device as d
        from pyverbs import mr
        from pyverbs.pd import PD
    assert d is emulator.pyverbs.device
    assert mr is emulator.pyverbs.mr
    assert PD is emulator.pyverbs.pd.PD


def test_a_module_that_pyverbs_lacks_is_missing_by_its_own_name() -> None:
    with import_hook(), pytest.raises(ModuleNotFoundError, match=r"pyverbs\.nonsense") as caught:
        importlib.import_module("pyverbs.nonsense")
    assert caught.value.name == "pyverbs.nonsense"


def test_other_imports_are_not_touched() -> None:
    with import_hook(), pytest.raises(ModuleNotFoundError, match="pyverbs_extra"):
        importlib.import_module("pyverbs_extra")


def test_nothing_is_left_behind() -> None:
    before = list(sys.meta_path)
    with devices(1):
        importlib.import_module("pyverbs.device")
        assert pyverbs_modules()
    assert sys.meta_path == before
    assert pyverbs_modules() == []


def test_nothing_is_left_behind_by_a_block_that_fails() -> None:
    before = list(sys.meta_path)
    with pytest.raises(ModuleNotFoundError), devices(1):
        importlib.import_module("pyverbs.nonsense")
    assert sys.meta_path == before
    assert pyverbs_modules() == []


def test_a_real_pyverbs_is_back_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("pyverbs")
    real_device = ModuleType("pyverbs.device")
    monkeypatch.setitem(sys.modules, "pyverbs", real)
    monkeypatch.setitem(sys.modules, "pyverbs.device", real_device)
    with devices(1):
        assert importlib.import_module("pyverbs.device") is emulator.pyverbs.device
    assert sys.modules["pyverbs"] is real
    assert sys.modules["pyverbs.device"] is real_device


def test_importing_the_emulator_alone_shadows_nothing() -> None:
    assert not [each for each in sys.meta_path if type(each).__module__.startswith("emulator")]


def test_options_are_checked_before_anything_is_changed() -> None:
    before, meta_path = fabric.devices(), list(sys.meta_path)
    for options in ({"mtu_bytes": 1000}, {"faults": "drop=2"}, {"speed": 3}):
        with pytest.raises(ConfigError):
            devices(1, **options)
    assert fabric.devices() == before
    assert sys.meta_path == meta_path
