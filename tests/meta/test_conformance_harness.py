"""The conformance harness fails a run for everything that it must fail a run for."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest

from tests.conformance import machine, report, sdist
from tests.conformance.__main__ import DOCUMENT, judge, options
from tests.conformance.runner import FAILED, PASSED, SKIPPED, Launch, ModuleRun, Outcome, run_module
from tests.conformance.suite import FLOOR, MODULES, TOTAL, listed_tests
from tests.conformance.verdict import ALLOWED_SKIPS, allowed_skip, complaints
from tests.support.repository import ROOT

LONG_S = 60.0

ARGS_PARSER = """
class Parser:
    def parse_args(self):
        pass


parser = Parser()
"""

MIXED = """
import random
import unittest


class Mixed(unittest.TestCase):
    def test_passes(self):
        pass

    def test_fails(self):
        self.assertEqual(1, 2, "one is not two")

    def test_errs(self):
        raise RuntimeError("it broke")

    def test_is_declined(self):
        raise unittest.SkipTest("Multicast is not supported on this device")

    def test_fails_in_a_part(self):
        for part in range(3):
            with self.subTest(part=part):
                self.assertNotEqual(part, 1)

    def test_draws(self):
        raise unittest.SkipTest(str(random.getrandbits(64)))
"""

HANGING = """
import threading
import unittest


class Hanging(unittest.TestCase):
    def test_a_passes(self):
        pass

    def test_b_never_ends(self):
        threading.Event().wait()

    def test_c_comes_too_late(self):
        pass
"""

DYING = """
import os
import unittest


class Dying(unittest.TestCase):
    def test_dies(self):
        os._exit(7)
"""

BROKEN = """
import unittest
import no_such_module_anywhere


class Broken(unittest.TestCase):
    def test_never_seen(self):
        pass
"""


def run_fake(tmp_path: Path, source: str, *, timeout_s: float = LONG_S, seed: int = 0) -> ModuleRun:
    """What the harness sees of a module called `fake` with this source."""
    tests, scratch = tmp_path / "tree" / "tests", tmp_path / "scratch"
    for folder in (tests, scratch):
        folder.mkdir(parents=True, exist_ok=True)
    # Importing the package's own `__init__` would end the run, as upstream's does.
    (tests / "__init__.py").write_text("raise ImportError('the package was imported')\n")
    (tests / "args_parser.py").write_text(ARGS_PARSER)
    (tests / "test_fake.py").write_text(source)
    launch = Launch([sys.executable], machine.environment(ROOT, scratch), timeout_s, grace_s=LONG_S)
    return run_module(tests, "fake", launch, scratch, seed)


def run_of(passed: int = 0, failed: int = 0, skips: dict[str, str] | None = None) -> ModuleRun:
    """A run made up of so many tests, and of skips with their reasons."""
    outcomes = [Outcome(f"A.test_{n}", PASSED) for n in range(passed)]
    outcomes += [Outcome(f"B.test_{n}", FAILED, "it broke") for n in range(failed)]
    outcomes += [Outcome(test, SKIPPED, reason) for test, reason in (skips or {}).items()]
    return ModuleRun("fake", tuple(outcomes), 1.0)


def by_test(run: ModuleRun) -> dict[str, Outcome]:
    return {outcome.test: outcome for outcome in run.outcomes}


def test_each_outcome_is_told_apart(tmp_path: Path) -> None:
    run = run_fake(tmp_path, MIXED)
    found = by_test(run)
    assert run.trouble == ""
    assert {test: outcome.outcome for test, outcome in found.items()} == {
        "Mixed.test_passes": PASSED,
        "Mixed.test_fails": FAILED,
        "Mixed.test_errs": FAILED,
        "Mixed.test_is_declined": SKIPPED,
        "Mixed.test_fails_in_a_part": FAILED,
        "Mixed.test_draws": SKIPPED,
    }
    assert "one is not two" in found["Mixed.test_fails"].detail
    assert "it broke" in found["Mixed.test_errs"].detail
    assert "part=1" in found["Mixed.test_fails_in_a_part"].detail


def test_a_seed_makes_a_test_draw_the_same_again(tmp_path: Path) -> None:
    drawn = [
        by_test(run_fake(tmp_path, MIXED, seed=seed))["Mixed.test_draws"].detail
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_hang_is_reported_with_the_stack_and_costs_the_tests_behind_it(tmp_path: Path) -> None:
    run = run_fake(tmp_path, HANGING, timeout_s=3.0)
    found = by_test(run)
    assert run.trouble == "hung in Hanging.test_b_never_ends"
    assert "in test_b_never_ends" in run.log
    assert found["Hanging.test_a_passes"].outcome == PASSED
    assert found["Hanging.test_b_never_ends"].outcome == FAILED
    assert found["Hanging.test_c_comes_too_late"].outcome == FAILED
    assert "fake: hung in Hanging.test_b_never_ends" in complaints([run], whole=False)


def test_a_process_that_dies_is_reported(tmp_path: Path) -> None:
    run = run_fake(tmp_path, DYING)
    assert run.trouble == "ended with status 7 in Dying.test_dies"
    assert by_test(run)["Dying.test_dies"].outcome == FAILED
    assert complaints([run], whole=False)


def test_a_module_that_cannot_be_imported_fails_its_tests(tmp_path: Path) -> None:
    run = run_fake(tmp_path, BROKEN)
    assert "no_such_module_anywhere" in run.trouble
    assert by_test(run)["Broken.test_never_seen"].outcome == FAILED


def test_a_good_run_is_good() -> None:
    skips = {
        f"CMTestCase.test_multicast_{n}": "Multicast is not supported on this device"
        for n in range(TOTAL - FLOOR)
    }
    assert complaints([run_of(FLOOR, 0, skips)], whole=True) == []


def test_a_failing_test_fails_the_run() -> None:
    assert complaints([run_of(TOTAL, 1)], whole=True) == ["1 tests failed; none may"]


def test_too_few_passes_fail_the_run_though_every_skip_is_allowed() -> None:
    skips = {f"A.test_{n}_xrc": "Create XRCD is not supported" for n in range(TOTAL - FLOOR + 1)}
    run = run_of(FLOOR - 1, 0, skips)
    assert complaints([run], whole=True) == [f"{FLOOR - 1} tests passed; at least {FLOOR} must"]
    assert complaints([run], whole=False) == []


def test_tests_that_get_lost_fail_the_run() -> None:
    found = complaints([run_of(TOTAL - 1)], whole=True)
    assert found == [f"{TOTAL - 1} tests were found; there are {TOTAL}"]


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("MRTest.test_reg_mr", "Reg MR with access (1) is not supported"),
        ("CMTestCase.test_rdmacm_sync_traffic", "SkipTest occurred on passive side"),
        ("AHTest.test_create_ah", "No supported port is up, can't run traffic"),
        # An allowed reason, given by a test that has no right to it.
        ("QpExTestCase.test_qp_ex_rc_send", "Extended QP is not supported on this device"),
        ("QPTest.test_create_rc_qp_no_attr", "Create XRCD is not supported"),
        ("AtomicTest.test_xrc", "Create XRCD is not supported, nor is anything else"),
    ],
)
def test_a_skip_for_another_reason_fails_the_run(test: str, reason: str) -> None:
    (complaint,) = complaints([run_of(skips={test: reason})], whole=False)
    assert complaint == f"fake: {test} may not be skipped for: {reason}"


@pytest.mark.parametrize(
    ("test", "reason", "name"),
    [
        (
            "DmaBufMRTest.test_x",
            "Allocating dmabuf is not supported by /dev/dri/renderD128",
            "dma-buf",
        ),
        (
            "QPTest.test_create_raw_qp_ex_no_attr",
            "Create Raw Packet QP without extended attrs is not supported",
            "raw packet",
        ),
        ("AtomicTest.test_xrc_atomic_fetch_and_add", "Create XRCD is not supported", "XRC"),
    ],
)
def test_a_skip_that_is_allowed_has_a_name(test: str, reason: str, name: str) -> None:
    allowed = allowed_skip(test, reason)
    assert allowed is not None
    assert allowed.name == name


def test_summary_is_the_last_line_and_the_status_says_it_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert judge([[run_of(3)]], whole=False) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "conformance: 3 passed, 0 failed, 0 skipped"
    assert judge([[run_of(3, 1)]], whole=False) == 1
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "conformance: 3 passed, 1 failed, 0 skipped"
    assert "FAILED fake: B.test_0" in printed


def test_a_flake_fails_a_soak(capsys: pytest.CaptureFixture[str]) -> None:
    good = run_of(2)
    bad = dataclasses.replace(
        good, outcomes=(good.outcomes[0], Outcome("A.test_1", FAILED, "it broke"))
    )
    assert report.flakes([[good], [good]]) == []
    assert report.flakes([[good], [bad], [good]]) == ["fake: A.test_1: 1 failed, 2 passed"]
    assert judge([[good], [bad], [good]], whole=False) == 1
    printed = capsys.readouterr().out
    assert "2 of 3 rounds were good" in printed
    assert printed.splitlines()[-1] == "conformance: 1 passed, 1 failed, 0 skipped"


def test_tests_are_listed_without_importing_them(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text(BROKEN)
    assert listed_tests(tmp_path, "broken") == ("Broken.test_never_seen",)


def archive(path: Path, names: Sequence[str]) -> None:
    """Make a tar archive with files of these names, and a link."""
    with tarfile.open(path, "w:gz") as archived:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            archived.addfile(member, io.BytesIO(b"x"))
        link = tarfile.TarInfo("pkg/tests/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archived.addfile(link)


def test_a_wrong_checksum_is_refused_and_not_kept(tmp_path: Path) -> None:
    def fetch(folder: Path) -> None:
        (folder / sdist.FILE_NAME).write_bytes(b"something else")

    with pytest.raises(sdist.SdistError, match="refused"):
        sdist.obtain(tmp_path, fetch)
    assert list(tmp_path.iterdir()) == []


def test_a_checked_archive_is_fetched_once_and_a_spoilt_one_again(tmp_path: Path) -> None:
    fetched = []

    def fetch(folder: Path) -> None:
        fetched.append(folder)
        (folder / sdist.FILE_NAME).write_bytes(b"right")

    digest = hashlib.sha256(b"right").hexdigest()
    for _ in range(2):
        kept = sdist.obtain(tmp_path, fetch, digest)
    assert len(fetched) == 1
    kept.write_bytes(b"spoilt")
    assert sdist.obtain(tmp_path, fetch, digest).read_bytes() == b"right"
    assert len(fetched) == 2


def test_nothing_is_unpacked_but_the_regular_files_of_the_tests(tmp_path: Path) -> None:
    packed = tmp_path / "a.tar.gz"
    names = ["pkg/tests/a.py", "pkg/tests/sub/b.py", "pkg/setup.py", "pkg/tests/../../evil.py"]
    archive(packed, [*names, "/pkg/tests/c.py"])
    unpacked = sdist.unpack_tests(packed, tmp_path / "out", PurePosixPath("pkg/tests"))
    assert unpacked == tmp_path / "out" / "tests"
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.py")}
    assert found == {"out/tests/a.py", "out/tests/sub/b.py"}


def test_an_archive_without_the_tests_is_refused(tmp_path: Path) -> None:
    packed = tmp_path / "a.tar.gz"
    archive(packed, ["pkg/setup.py"])
    with pytest.raises(sdist.SdistError, match="no files"):
        sdist.unpack_tests(packed, tmp_path / "out", PurePosixPath("other/tests"))


def ask(programs: Path, *command: str) -> str:
    environment = machine.environment(ROOT, programs, programs)
    done = subprocess.run(
        # Found on the PATH of the child, as the tests find it.
        ["/usr/bin/env", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_machine_describes_each_device(tmp_path: Path) -> None:
    devices = [machine.Device("emu0", "127.0.0.1"), machine.Device("emu1", "127.0.0.2")]
    programs = machine.make_programs(tmp_path, devices)
    links = json.loads(ask(programs, "rdma", "link", "show", "-j"))
    assert [(link["ifname"], link["port"]) for link in links] == [("emu0", 1), ("emu1", 1)]
    shown = [json.loads(ask(programs, "ip", "-j", "addr", "show", d["netdev"])) for d in links]
    assert [one["addr_info"][0]["local"] for (one,) in shown] == ["127.0.0.1", "127.0.0.2"]
    assert ask(programs, "cat", f"{machine.SYSFS}/emu0/ports/1/pkeys/0") == "0xffff\n"


def test_other_questions_go_to_the_real_programs(tmp_path: Path) -> None:
    programs = machine.make_programs(tmp_path, [machine.Device("emu0", "127.0.0.1")])
    note = tmp_path / "a note"
    note.write_text("of mine\n")
    assert ask(programs, "cat", str(note)) == "of mine\n"


def test_modules_and_reasons_are_named_once() -> None:
    assert len(set(MODULES)) == len(MODULES) == 16
    names = [allowed.name for allowed in ALLOWED_SKIPS]
    assert len(set(names)) == len(names)


def test_a_module_that_there_is_not_is_refused() -> None:
    assert options(["--module", "cq", "--module", "mr"]).module == ["cq", "mr"]
    with pytest.raises(SystemExit):
        options(["--module", "cp"])


def test_tables_are_put_between_the_marks(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    run = run_of(2, 0, {"A.test_xrc": "Create XRCD is not supported"})
    report.write_document(document, [run])
    text = document.read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text
    assert "| fake | 2 | 1 | 0 |" in text
    assert "| XRC | 1 | extended reliable connections" in text
    document.write_text("no marks\n")
    with pytest.raises(ValueError, match="no lines"):
        report.write_document(document, [run])


def test_the_document_has_a_good_result_of_every_module() -> None:
    text = DOCUMENT.read_text()
    assert f"at least {FLOOR} of the {TOTAL}" in " ".join(text.split())
    block = text[text.index(report.BEGIN) : text.index(report.END)]
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \|$", block, re.M)
    assert [row[0] for row in rows] == list(MODULES)
    passed, skipped, failed = (sum(int(row[column]) for row in rows) for column in (1, 2, 3))
    assert f"conformance: {passed} passed, {failed} failed, {skipped} skipped" in block
    assert passed >= FLOOR
    assert passed + skipped >= TOTAL
    assert failed == 0
