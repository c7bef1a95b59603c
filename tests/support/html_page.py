"""What a browser would make of a page: that its tags are closed, and what it would fetch."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_VOID = {"meta", "br", "hr", "img", "link", "input"}
_FETCHING = re.compile(r"url\s*\(|@import|https?:|//[a-z]", re.I)


class PageReader(HTMLParser):
    """Reads a whole page; ``AssertionError`` for tags that do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.fetched: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in _VOID:
            self._open.append(tag)
        self.fetched += [name for name, _ in attrs if name in ("src", "href", "srcset", "data")]
        self.fetched += [value for _, value in attrs if value and _FETCHING.search(value)]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.fetched += _FETCHING.findall(data)
        elif self._open and self._open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)
        self.texts.append(data)

    @property
    def text(self) -> str:
        """All of it."""
        return " ".join(self.texts)
