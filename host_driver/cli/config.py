"""``kvlane config``: the agent's settings, as they take effect."""

from __future__ import annotations

from pathlib import Path

import click

from host_driver.cli.agent_config import load_agent_config
from kvlane.config import load_mapping, render
from kvlane.verbs.backends import options_type


@click.group()
def config() -> None:
    """Show the agent's settings."""


@config.command()
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="The agent's YAML file; without it, the defaults.",
)
def show(path: Path | None) -> None:
    """Print the effective settings as YAML, each under its documentation.

    Those of the NIC are among them, and are checked as the agent checks them.
    The output is itself a valid file for the agent, a good start for one of your own.
    """
    effective = load_agent_config(path)
    device = effective.device
    where = f"{path or 'defaults'}: device.options"
    options: object = load_mapping(options_type(device.verbs), device.options, where)
    click.echo(render(effective, {"device.options": options}), nl=False)
