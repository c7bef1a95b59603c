"""Pages: well-formed, complete in themselves, and deaf to what is put into their texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlane.errors import ConfigError
from kvlane.report.line_chart import Chart, Line
from kvlane.report.page import (
    Section,
    Text,
    charts,
    facts,
    figure,
    note,
    page,
    paragraph,
    table,
    write_page,
)
from tests.support.html_page import PageReader

EVIL = '<script src="//evil/x.js">&"\''


def whole(text: str) -> str:
    chart = Chart(text, text, text, [Line(text, [(1, 1)])], x_labels={1: text})
    parts = [
        paragraph(text),
        note(text),
        facts([(text, text)]),
        table([text], [[text], [Text(text)]]),
    ]
    parts.append(charts([figure(chart, text, [text], [[text]] * 20)]))
    return page(text, [Section(text, parts)])


def test_a_page_is_well_formed_and_fetches_nothing() -> None:
    reader = PageReader(whole("plain"))
    assert reader.fetched == []
    assert reader.headings == ["plain", "plain", "plain"]
    assert {"svg", "table", "dl", "details"} <= set(reader.tags)


def test_text_from_outside_stays_text() -> None:
    page = whole(EVIL)
    reader = PageReader(page)
    assert "script" not in reader.tags
    assert "<script" not in page
    assert reader.headings == [EVIL] * 3
    assert sorted(set(reader.tags)) == sorted(set(PageReader(whole("plain")).tags))


def test_a_page_fits_a_phone_and_the_dark() -> None:
    page = whole("plain")
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_page(path, "first")
    write_page(path, "second")
    assert path.read_text() == "second"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ConfigError, match="name a file in a folder"):
        write_page(tmp_path / "none" / "report.html", "x")
