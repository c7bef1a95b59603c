"""Makes ``import pyverbs`` resolve to the modules of this package.

A module has one object under both names, so that a class is the same class whichever way a
program and this package have imported it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from emulator.pyverbs import fabric
from emulator.pyverbs.config import FabricConfig
from kvlane.config import load_mapping

_FOREIGN = "pyverbs"
_OWN = "emulator.pyverbs"


class _AliasLoader(Loader):
    """Loads a module of this package under another name."""

    def __init__(self, own_name: str) -> None:
        self._own_name = own_name
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 (the same for all)
        """The module itself, imported under its own name."""
        module = importlib.import_module(self._own_name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed; only the spec that the import has overwritten is put back."""
        module.__spec__ = self._own_spec


class _Finder(MetaPathFinder):
    """Finds ``pyverbs`` and everything below it here."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 (the finder has its own)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The spec of a module of this package; ``None`` for others and for what is not here."""
        if fullname != _FOREIGN and not fullname.startswith(_FOREIGN + "."):
            return None
        own_name = _OWN + fullname[len(_FOREIGN) :]
        if importlib.util.find_spec(own_name) is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: the emulator's pyverbs does not have it",
                name=fullname,
            )
        return ModuleSpec(fullname, _AliasLoader(own_name), is_package=_is_package(own_name))


def _is_package(own_name: str) -> bool:
    spec = importlib.util.find_spec(own_name)
    return spec is not None and spec.submodule_search_locations is not None


def _take_modules() -> dict[str, ModuleType]:
    """Take modules named pyverbs out of the import system."""
    names = [n for n in sys.modules if n == _FOREIGN or n.startswith(_FOREIGN + ".")]
    return {name: sys.modules.pop(name) for name in names}


@contextmanager
def import_hook() -> Iterator[None]:
    """Inside the block ``pyverbs`` is this package; before and after, what it was."""
    finder = _Finder()
    before = _take_modules()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _take_modules()
        sys.modules.update(before)


@contextmanager
def installed(config: FabricConfig) -> Iterator[list[fabric.RdmaDevice]]:
    """Import hook and devices of a configuration for the length of the block."""
    before = fabric.install(config)
    try:
        with import_hook():
            yield fabric.devices()
    finally:
        fabric.restore(before)


def devices(
    count: int = 1, **options: str | int
) -> AbstractContextManager[list[fabric.RdmaDevice]]:
    """``count`` emulated devices, and ``import pyverbs`` resolving to them, inside a block.

    ``options`` are those of ``FabricConfig``, such as ``mtu_bytes=1024`` or
    ``faults="drop=0.01"``; ``ConfigError`` says what is wrong with them.
    """
    return installed(load_mapping(FabricConfig, {"devices": count, **options}, "devices()"))
