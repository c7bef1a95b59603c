"""The repository's own rules, each with a control that shows that its check can fail."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support import tidy
from tests.support.repository import (
    ROOT,
    is_generated,
    listed_files,
    module_name,
    package_files,
    python_files,
    relative,
)


def text_of(path: Path) -> str | None:
    """The text of a file, or None when it is binary."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=relative(path))


def complaints(paths: Sequence[Path], check: Callable[[Path], list[str]]) -> list[str]:
    """``file: complaint`` for each complaint; an empty list of files is no proof of order."""
    assert paths
    return [f"{relative(path)}: {text}" for path in paths for text in check(path)]


def written_files() -> list[Path]:
    """Text that people wrote: all but generated code and the licence's own words."""
    return [
        path
        for path in listed_files()
        if path != ROOT / "LICENSE" and not is_generated(path) and text_of(path) is not None
    ]


def test_nothing_is_left_unfinished() -> None:
    assert complaints(written_files(), lambda p: tidy.unfinished(text_of(p) or "")) == []


def test_no_path_of_a_machine_and_no_registry() -> None:
    assert complaints(written_files(), lambda p: tidy.foreign_places(text_of(p) or "")) == []


def test_files_hold_one_idea() -> None:
    assert complaints(python_files(), lambda p: tidy.too_long_file(text_of(p) or "")) == []


def test_functions_fit_a_screen() -> None:
    assert complaints(package_files(), lambda p: tidy.too_long_functions(tree_of(p))) == []


def test_kernels_are_in_kernel_modules() -> None:
    found = complaints(package_files(), lambda p: tidy.stray_kernels(tree_of(p), relative(p)))
    assert found == []


def test_nothing_banned_is_used() -> None:
    found = complaints(python_files(), lambda p: tidy.banned_uses(tree_of(p), relative(p)))
    assert found == []


def test_every_test_file_asserts_something() -> None:
    tests = [path for path in python_files() if path.name.startswith("test_")]
    assert complaints(tests, lambda p: tidy.asserts_nothing(tree_of(p))) == []


def test_no_module_is_dead() -> None:
    used = tidy.named_modules((ROOT / "pyproject.toml").read_text())
    for path in python_files():
        is_package = path.name == "__init__.py"
        used |= tidy.imported_modules(tree_of(path), module_name(path), is_package=is_package)
    for path in package_files():
        used |= tidy.named_modules(text_of(path) or "")
    modules = [module_name(path) for path in package_files() if path.name != "__init__.py"]
    assert tidy.dead_modules(modules, used) == []


# Controls: what each check must report, and the nearest thing that it must let pass.
# A caret splits what must not stand in this file either.


@pytest.mark.parametrize("split", ["TO^DO", "FIX^ME", "X^XX"])
def test_control_unfinished(split: str) -> None:
    word = split.replace("^", "")
    assert tidy.unfinished(f"x = 1  # {word}: later") == [f"line 1: x = 1  # {word}: later"]
    assert tidy.unfinished(f"{word}S and {word.lower()} are other words") == []


@pytest.mark.parametrize(
    "split",
    [
        "cd /^work/main",
        "HOME=/^root",
        '"/^root/.cache"',
        "pip install --index^-url somewhere",
        "https://py^pi.org/project/x",
        "http://mirror.example/^simple/",
    ],
)
def test_control_foreign_places(split: str) -> None:
    text = split.replace("^", "")
    assert tidy.foreign_places(f"fine\n{text}\n") == [f"line 2: {text}"]


@pytest.mark.parametrize("text", ["a/work", "the /workers", "~/work/x", "https://example.org/a/"])
def test_control_ordinary_places(text: str) -> None:
    assert tidy.foreign_places(text) == []


def test_control_lengths() -> None:
    line = "    x = 1\n"
    assert tidy.too_long_functions(ast.parse("def f():\n" + line * 59)) == []
    long = "class A:\n  async def f():\n" + line * 60
    assert tidy.too_long_functions(ast.parse(long)) == ["f has 61 lines; at most 60"]
    assert tidy.too_long_file("\n" * 600) == []
    assert tidy.too_long_file("\n" * 601) == ["601 lines; split it"]


@pytest.mark.parametrize(
    "code",
    [
        "from kvlane.jit import kernel\n@kernel\ndef f(): pass",
        "from kvlane import jit\n@jit.kernel\ndef f(): pass",
        "import kvlane.jit\nf = kvlane.jit.kernel(g)",
        "from numba import njit",
        "import numba as nb",
    ],
)
def test_control_stray_kernels(code: str) -> None:
    tree = ast.parse(code)
    assert tidy.stray_kernels(tree, "emulator/roce/engine.py")
    assert tidy.stray_kernels(tree, "emulator/roce/engine_kernels.py") == []


@pytest.mark.parametrize(
    ("code", "instead"),
    [
        ("import random\nx = random.random()", "kvlane.seams.Rng"),
        ("from random import choice\nx = choice(y)", "kvlane.seams.Rng"),
        ("import random\nx = random.Random()", "without a seed"),
        ("import numpy as np\nx = np.random.rand(3)", "default_rng(seed)"),
        ("import numpy as np\nx = np.random.default_rng()", "without a seed"),
        ("import time\nx = time.time()", "kvlane.seams.Clock"),
        ("from datetime import datetime\nx = datetime.now()", "kvlane.seams.Clock"),
        ("print('x')", "click.echo"),
        ("import os\nx = os.environ['HOME']", "configuration"),
        ("import os\nx = os.environ.get('HOME')", "configuration"),
        ("from os import getenv\nx = getenv('HOME')", "configuration"),
        ("eval('1')", "table of functions"),
    ],
)
def test_control_banned(code: str, instead: str) -> None:
    found = tidy.banned_uses(ast.parse(code), "dpu_agent/cache/store.py")
    assert len(found) == 1
    assert instead in found[0]


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("import random\nx = random.Random(7)", "emulator/link/faults.py"),
        ("x = self.random.random()", "emulator/link/faults.py"),
        ("def f(random):\n    return random.random()", "emulator/link/faults.py"),
        ("import time\nx = time.monotonic_ns()", "dpu_agent/runtime/worker.py"),
        ("print('x')", "host_driver/cli/main.py"),
        ("import os\nx = os.environ.get('X')", "proto/kvlane/jit.py"),
    ],
)
def test_control_allowed(code: str, path: str) -> None:
    assert tidy.banned_uses(ast.parse(code), path) == []


def test_control_asserts_nothing() -> None:
    assert tidy.asserts_nothing(ast.parse("def test_x(): f()")) == ["asserts nothing"]
    assert tidy.asserts_nothing(ast.parse("def test_x(): assert f()")) == []
    assert tidy.asserts_nothing(ast.parse("def test_x():\n with pytest.raises(E): f()")) == []


@pytest.mark.parametrize(
    "code",
    [
        "import emulator.link.frames",
        "from emulator.link import frames",
        "from emulator.link.frames import Burst",
        "from . import frames",
        "from .frames import Burst",
        "from ..link import frames",
    ],
)
def test_control_dead_modules(code: str) -> None:
    used = tidy.imported_modules(ast.parse(code), "emulator.link.udp", is_package=False)
    modules = ["emulator.link.frames", "emulator.nic.dead", "emulator.__main__"]
    assert tidy.dead_modules(modules, used) == ["emulator.nic.dead"]


def test_control_named_modules() -> None:
    text = 'x = {"emulator": "emulator.backend"}\nkvlane = "host_driver.cli.main:main"\n"a b.c"'
    assert tidy.named_modules(text) == {"emulator.backend", "host_driver.cli.main"}
