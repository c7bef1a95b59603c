"""Results on standard output: as tables for a terminal, as JSON, or as Markdown to paste."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from io import StringIO
from typing import Protocol

import click
from rich.console import Console
from rich.table import Table


class Form(Enum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class Tellable(Protocol):
    """Results that can be printed in every form."""

    def as_text(self) -> str:
        """For a terminal."""

    def as_json(self) -> str:
        """One object."""

    def as_markdown(self) -> str:
        """Tables."""


def show(results: Tellable, form: Form) -> None:
    """Print results."""
    if form is Form.JSON:
        text = results.as_json()
    elif form is Form.MARKDOWN:
        text = results.as_markdown()
    else:
        text = results.as_text()
    click.echo(text.removesuffix("\n"))


def terminal_text(*tables: Table, width: int | None = None) -> str:
    """Tables as they look in a terminal of ``width`` columns, by default this one."""
    text = StringIO()
    console = Console(file=text, width=width or Console().width)
    for table in tables:
        console.print(table)
    return text.getvalue()


def markdown_table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = (heads, ("---",) * len(heads), *body)
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
