"""A report as one HTML file that needs nothing else: no network, no script, no other file.

Whatever comes from outside goes through functions that escape it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from kvlane.errors import ConfigError
from kvlane.report.line_chart import COLOURS, Chart, as_figure, styles, swatch_line

_DARK_COLOURS = (
    "#4aa8e0",
    "#ff8a4c",
    "#3ccfa0",
    "#e9a6cb",
    "#e2b84a",
    "#9ad6ff",
    "#b7a3ff",
    "#cf9a8c",
)
_MOST_OPEN_ROWS = 8
"""A longer table below a chart is folded up."""


def _variables(colours: Sequence[str], ink: str, faint: str, grid: str, ground: str) -> str:
    lines = "".join(f"--line-{number}:{colour};" for number, colour in enumerate(colours))
    return f"{lines}--ink:{ink};--faint:{faint};--grid:{grid};--ground:{ground}"


_CSS = f"""
:root {{
  color-scheme: light dark;
  {_variables(COLOURS, "#1c1c1c", "#5a5a5a", "#ddd", "#fff")}
}}
@media (prefers-color-scheme: dark) {{
  :root {{ {_variables(_DARK_COLOURS, "#e8e8e8", "#a8a8a8", "#3a3a3a", "#161616")} }}
}}
body {{
  margin: 0 auto; padding: 1rem; max-width: 72rem;
  background: var(--ground); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif;
}}
h1 {{ font-size: 1.5rem; margin: .5rem 0; overflow-wrap: anywhere; }}
h2 {{
  font-size: 1.2rem; margin: 2rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--grid);
}}
h3 {{ font-size: 1rem; margin: 0 0 .25rem; }}
p {{ max-width: 46rem; margin: .5rem 0; }}
.note, figcaption, summary {{ color: var(--faint); font-size: .9rem; }}
.charts {{
  display: grid; gap: 1.5rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr));
}}
figure {{ margin: 0; min-width: 0; }}
svg {{ display: block; width: 100%; height: auto; }}
.legend {{
  display: flex; flex-wrap: wrap; gap: .1rem 1rem;
  list-style: none; margin: .25rem 0; padding: 0; font-size: .85rem;
}}
.legend svg {{ display: inline-block; width: 22px; height: 10px; margin-right: .35rem; }}
.scroll {{ overflow-x: auto; }}
table {{
  border-collapse: collapse; margin: .5rem 0;
  font-size: .9rem; font-variant-numeric: tabular-nums;
}}
th, td {{
  padding: .2rem .7rem; border-bottom: 1px solid var(--grid);
  text-align: right; white-space: nowrap;
}}
th {{ font-weight: 600; vertical-align: bottom; }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; }}
td.text {{ text-align: left; white-space: normal; min-width: 14rem; }}
.facts {{
  display: grid; gap: .75rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr));
}}
.facts div {{ border: 1px solid var(--grid); border-radius: .4rem; padding: .5rem .75rem; }}
.facts dt {{ font-size: .85rem; color: var(--faint); }}
.facts dd {{ margin: 0; font-size: 1.3rem; font-weight: 600; }}
"""


@dataclass(frozen=True, slots=True)
class Text:
    """A cell of a table that is read rather than compared: it may wrap."""

    text: str


Cell = str | Text


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what is under it, as HTML."""

    title: str
    parts: Sequence[str]


def paragraph(text: str) -> str:
    """Plain text."""
    return f"<p>{escape(text)}</p>"


def note(text: str) -> str:
    """Plain text of less weight."""
    return f'<p class="note">{escape(text)}</p>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """The few values that matter most, each with its name."""
    cells = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="facts">{"".join(cells)}</dl>'


def table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table that scrolls where the page is narrow."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    if isinstance(cell, Text):
        return f'<td class="text">{escape(cell.text)}</td>'
    return f"<td>{escape(cell)}</td>"


def figure(
    chart: Chart, caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """A chart with its legend, what it shows, and its numbers as a table."""
    numbers = table(headings, rows)
    if len(rows) > _MOST_OPEN_ROWS:
        numbers = f"<details><summary>The numbers</summary>{numbers}</details>"
    return (
        f"<figure><h3>{escape(chart.title)}</h3>{as_figure(chart)}{_legend(chart)}"
        f"<figcaption>{escape(caption)}</figcaption>{numbers}</figure>"
    )


def _legend(chart: Chart) -> str:
    items = (
        f'<li><svg viewBox="0 0 22 10" aria-hidden="true">{swatch_line(1, 5, style)}</svg>'
        f"{escape(line.name)}</li>"
        for line, style in zip(chart.lines, styles(chart.lines), strict=True)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def charts(figures: Sequence[str]) -> str:
    """Figures beside each other as far as there is room."""
    return f'<div class="charts">{"".join(figures)}</div>'


def page(title: str, sections: Sequence[Section]) -> str:
    """The whole file."""
    body = "".join(
        f"<section><h2>{escape(section.title)}</h2>{''.join(section.parts)}</section>"
        for section in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{_CSS}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def write_page(path: Path, text: str) -> None:
    """Write the file, whole or not at all; ``ConfigError`` says why it cannot be."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); name a file in a folder that this "
            f"user may write to"
        ) from error
