"""``kvlane config``: the agent's settings, as they take effect."""

from __future__ import annotations

from pathlib import Path

import click

from host_driver.cli.lookup import find_attribute
from kvlane.config import load_file, render

AGENT_CONFIG = "dpu_agent.config:AgentConfig"
"""By name: the driver's package does not import the agent's."""


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

    The output is itself a valid file for the agent, a good start for one of your own.
    """
    agent_config = find_attribute(AGENT_CONFIG)
    effective = agent_config() if path is None else load_file(agent_config, path)
    click.echo(render(effective), nl=False)
