"""What test_docs.py looks for. Each check takes a document's text and returns complaints."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.M | re.S)
_CODE = re.compile(r"`([^`\n]*)`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *$", re.M)
_MAKE = re.compile(r"^make ([a-z][a-z-]*)", re.M)
_COMMAND = re.compile(r"(?:^|^\S*bin/|exec kvlane )kvlane ([a-z]+)", re.M)


def without_code(text: str) -> str:
    """The prose: neither fenced blocks nor code between backticks."""
    return _CODE.sub("", _FENCE.sub("", text))


def code(text: str) -> str:
    """Only the code, fenced or between backticks, each piece on lines of its own."""
    fenced = [match.group(0) for match in _FENCE.finditer(text)]
    return "\n".join([*fenced, *_CODE.findall(_FENCE.sub("", text))])


def anchors(text: str) -> set[str]:
    """Fragments by which headings are linked to."""
    titles = (match.group(2) for match in _HEADING.finditer(_FENCE.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(text: str, path: Path) -> list[str]:
    """Relative links of the document at ``path`` that lead nowhere."""
    complaints = []
    for target in _LINK.findall(without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        file = path.parent / name
        if not file.exists():
            complaints.append(f"{target}: no such file")
        elif fragment and fragment not in anchors(file.read_text() if name else text):
            complaints.append(f"{target}: no such heading")
    return complaints


def wrong_titles(text: str) -> list[str]:
    """Anything but exactly one first-level heading."""
    titles = [m.group(2) for m in _HEADING.finditer(_FENCE.sub("", text)) if m.group(1) == "#"]
    return [] if len(titles) == 1 else [f"{len(titles)} first-level headings: {titles}"]


def unknown_targets(text: str, targets: Collection[str]) -> list[str]:
    """``make x`` in code where the Makefile has no x."""
    return [f"make {name}" for name in sorted({*_MAKE.findall(code(text))} - {*targets})]


def unknown_commands(text: str, commands: Collection[str]) -> list[str]:
    """``kvlane x`` in code where the command line has no x."""
    return sorted(
        {f"kvlane {name}" for name in _COMMAND.findall(code(text)) if name not in commands}
    )
