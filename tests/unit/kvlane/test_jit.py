"""Compiled kernels are kept where the user says, and never outlive their sources."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.repository import PACKAGES, run_python

WHERE = "from kvlane import jit; print(jit.CACHE_DIR)"

KERNEL = """
from kvlane import jit

@jit.kernel
def half(x):
    return x / 2

before = jit.is_warm("half")
value = half(3)
hits = sum(half.stats.cache_hits.values()) if jit.JIT_ENABLED else 0
compiled = jit.is_warm("half")
jit.mark_warm("half")
print(before, value, hits, compiled, jit.is_warm("half"), jit.is_warm("whole"))
"""


def run(program: list[str], cwd: Path, env: Mapping[str, str], *search: Path) -> str:
    """What a new process prints; it compiles unless ``env`` says otherwise."""
    environment = {"NUMBA_DISABLE_JIT": "0", **env}
    if search:
        done = run_python(program, cwd=cwd, search=search, env=environment)
    else:
        done = run_python(program, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def cache_dir(tmp_path: Path, env: Mapping[str, str], *search: Path) -> Path:
    return Path(run(["-c", WHERE], tmp_path, env, *search))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of kvlane beside a package that has a kernel."""
    shutil.copytree(
        PACKAGES["kvlane"],
        tmp_path / "tree" / "kvlane",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    emulator = tmp_path / "tree" / "emulator" / "wire"
    emulator.mkdir(parents=True)
    (emulator.parent / "__init__.py").touch()
    (emulator / "__init__.py").touch()
    (emulator / "_crc_kernels.py").write_text("FIRST = 1\n")
    (emulator / "header.py").write_text("FIRST = 1\n")
    return tmp_path / "tree"


def test_cache_folder_changes_with_a_kernel_source_and_with_nothing_else(
    tmp_path: Path, checkout: Path
) -> None:
    env = {"KVLANE_CACHE_DIR": str(tmp_path / "cache")}
    first = cache_dir(tmp_path, env, checkout)
    (checkout / "emulator" / "wire" / "header.py").write_text("SECOND = 2\n")
    assert cache_dir(tmp_path, env, checkout) == first
    seen = {first}
    for name in ("emulator/wire/_crc_kernels.py", "kvlane/rawmem.py", "kvlane/jit.py"):
        with (checkout / name).open("a") as source:
            source.write("# edited\n")
        seen.add(cache_dir(tmp_path, env, checkout))
    assert len(seen) == 4
    assert {path.parent for path in seen} == {tmp_path / "cache"}


def test_named_cache_folder_is_used_before_the_others(tmp_path: Path) -> None:
    named = tmp_path / "not" / "yet" / "there"
    env = {"KVLANE_CACHE_DIR": str(named), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    path = cache_dir(tmp_path, env)
    assert path.parent == named
    assert path.is_dir()
    assert not (tmp_path / "xdg").exists()


def test_user_cache_folder_is_used_where_none_is_named(tmp_path: Path) -> None:
    env = {"KVLANE_CACHE_DIR": "", "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    assert cache_dir(tmp_path, env).parent == tmp_path / "xdg" / "kvlane"
    env = {"KVLANE_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": str(tmp_path / "home")}
    assert cache_dir(tmp_path, env).parent == tmp_path / "home" / ".cache" / "kvlane"


def test_home_that_cannot_be_written_falls_back_to_a_private_folder(tmp_path: Path) -> None:
    # A file in the way refuses even root, whom permissions do not stop.
    (tmp_path / "home").write_text("no folder")
    (tmp_path / "tmp").mkdir()
    env = {
        "KVLANE_CACHE_DIR": "",
        "XDG_CACHE_HOME": "",
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "tmp"),
    }
    program = f"{WHERE}; print(oct(jit.CACHE_DIR.stat().st_mode & 0o777))"
    path, mode = run(["-c", program], tmp_path, env).split()
    assert Path(path).parent == tmp_path / "tmp"
    assert mode == "0o700"
    assert not Path(path).exists(), "a folder that nobody finds again must not be left behind"


def test_folders_that_were_not_used_for_long_are_removed(tmp_path: Path) -> None:
    env = {"KVLANE_CACHE_DIR": str(tmp_path)}
    old, recent = tmp_path / "kernels-old", tmp_path / "kernels-recent"
    old.mkdir()
    recent.mkdir()
    os.utime(old, (1, 1))
    current = cache_dir(tmp_path, env)
    assert not old.exists()
    assert recent.exists()
    assert current.exists()


def test_kernels_of_other_packages_stay_where_they_are(tmp_path: Path) -> None:
    program = "import numba; from kvlane import rawmem; print(repr(numba.config.CACHE_DIR))"
    assert run(["-c", program], tmp_path, {"KVLANE_CACHE_DIR": str(tmp_path)}) == "''"


def test_second_process_loads_what_the_first_compiled(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(KERNEL)
    env = {"KVLANE_CACHE_DIR": str(tmp_path / "cache")}
    assert run(["half.py"], tmp_path, env) == "False 1.5 0 False True False"
    assert run(["half.py"], tmp_path, env) == "True 1.5 1 True True False"


def test_a_run_that_was_stopped_half_way_leaves_kernels_but_is_not_warm(tmp_path: Path) -> None:
    """Its kernels are loaded by the next one, which still has the others to compile."""
    stopped = KERNEL[: KERNEL.index("compiled =")] + "print(before, value, hits)\n"
    (tmp_path / "stopped.py").write_text(stopped)
    env = {"KVLANE_CACHE_DIR": str(tmp_path / "cache")}
    assert run(["stopped.py"], tmp_path, env) == "False 1.5 0"
    assert list((tmp_path / "cache").rglob("*.nbc"))
    assert run(["stopped.py"], tmp_path, env) == "False 1.5 1"


def test_other_sources_are_not_warm_because_the_old_ones_were(
    tmp_path: Path, checkout: Path
) -> None:
    env = {"KVLANE_CACHE_DIR": str(tmp_path / "cache")}
    run(["-c", "from kvlane import jit; jit.mark_warm('all')"], tmp_path, env, checkout)
    ask = ["-c", "from kvlane import jit; print(jit.is_warm('all'))"]
    assert run(ask, tmp_path, env, checkout) == "True"
    with (checkout / "kvlane" / "rawmem.py").open("a") as source:
        source.write("# edited\n")
    assert run(ask, tmp_path, env, checkout) == "False"


def test_without_the_jit_a_kernel_is_the_function_itself(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(KERNEL)
    env = {"KVLANE_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_DISABLE_JIT": "1"}
    assert run(["half.py"], tmp_path, env) == "True 1.5 0 True True True"


RACE = """
import sys, time
from numba.core.caching import IndexDataCacheFile
from kvlane import jit

def adding(number):
    @jit.kernel
    def add(x):
        return x + number
    return add

save = IndexDataCacheFile._save_index

def save_late(self, overloads):
    time.sleep(float(sys.argv[1]))  # between looking for a free number and taking it
    save(self, overloads)

IndexDataCacheFile._save_index = save_late
kernels = [adding(int(number)) for number in sys.argv[2:]]
print(*(kernel(1000) for kernel in kernels))
print(*(sum(kernel.stats.cache_hits.values()) for kernel in kernels))
"""


def test_kernels_of_one_name_that_are_stored_at_once_stay_apart(tmp_path: Path) -> None:
    """They would get the same file: one's machine code under the other's name, and for good."""
    env = {"KVLANE_CACHE_DIR": str(tmp_path / "cache")}
    program = tmp_path / "race.py"
    program.write_text(RACE)
    with ThreadPoolExecutor() as pool:
        racers = [pool.submit(run, [str(program), "1", n], tmp_path, env) for n in ("1", "2", "3")]
        assert [racer.result() for racer in racers] == ["1001\n0", "1002\n0", "1003\n0"]
    assert run([str(program), "0", "1", "2", "3"], tmp_path, env) == "1001 1002 1003\n1 1 1"


MANY_THREADS = """
import numba, time
from concurrent.futures import ThreadPoolExecutor
from kvlane import jit

before = numba.config.CACHE_DIR

def set_up(turn):
    with jit.cached_in_our_folder(None):
        mine = numba.config.CACHE_DIR == str(jit.CACHE_DIR)
        time.sleep(turn % 3 * 1e-4)
        return mine and numba.config.CACHE_DIR == str(jit.CACHE_DIR)

with ThreadPoolExecutor(8) as threads:
    print(all(threads.map(set_up, range(400))), numba.config.CACHE_DIR == before)
"""


def test_threads_that_set_up_caching_at_once_all_find_our_folder(tmp_path: Path) -> None:
    done = run_python(["-c", MANY_THREADS], cwd=tmp_path, env={"KVLANE_CACHE_DIR": str(tmp_path)})
    assert (done.stdout.strip(), done.stderr) == ("True True", "")
