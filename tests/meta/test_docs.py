"""Documents say what is there: links, titles, make targets and commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from host_driver.cli.main import SUBCOMMANDS
from tests.support import documents
from tests.support.repository import ROOT, listed_files, relative

DOCUMENTS = [path for path in listed_files() if path.suffix == ".md"]
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_document(path: Path) -> None:
    text = path.read_text()
    assert documents.broken_links(text, path) == []
    assert documents.wrong_titles(text) == []
    assert documents.unknown_targets(text, TARGETS) == []
    assert documents.unknown_commands(text, SUBCOMMANDS) == []


def test_readme_begins_with_the_two_commands() -> None:
    assert ROOT / "README.md" in DOCUMENTS
    start = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    assert "make demo" in start
    assert "make test" in start


def test_every_make_target_is_phony_and_described() -> None:
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.M)
    assert sorted(phony.split()) == sorted(TARGETS)
    assert sorted(re.findall(r"^([a-z-]+):.*?## \S", text, re.M)) == sorted(TARGETS)


def test_control_links(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# There\n\n## A part, too\n")
    here = tmp_path / "here.md"
    fine = "[a](there.md) [b](there.md#a-part-too) [c](https://example.org) [d](#me) `[e](gone)`"
    assert documents.broken_links(f"# Me\n{fine}\n```\n[f](gone)\n```\n", here) == []
    broken = documents.broken_links("[a](gone.md) [b](there.md#gone) [c](#gone)", here)
    assert broken == [
        "gone.md: no such file",
        "there.md#gone: no such heading",
        "#gone: no such heading",
    ]


def test_control_titles() -> None:
    assert documents.wrong_titles("# One\n\n```sh\n# a comment\n```\n\n## Two\n") == []
    assert documents.wrong_titles("## None\n") == ["0 first-level headings: []"]
    assert documents.wrong_titles("# A\n# B\n") == ["2 first-level headings: ['A', 'B']"]


def test_control_commands() -> None:
    text = "```sh\nmake test\nmake nothing\n```\nUse `kvlane fly`, `a/bin/kvlane status`; make do."
    assert documents.unknown_targets(text, ["test"]) == ["make nothing"]
    assert documents.unknown_commands(text, ["status"]) == ["kvlane fly"]
