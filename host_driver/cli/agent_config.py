"""The agent's configuration file, for commands that show it or look into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from host_driver.cli.lookup import find_attribute
from kvlane.config import load_file

_AGENT_CONFIG = "dpu_agent.config:AgentConfig"
"""By name: the driver's package does not import the agent's."""


def load_agent_config(path: Path | None) -> Any:
    """The ``AgentConfig`` of a file, or the defaults; ``ConfigError`` names what is wrong."""
    agent_config = find_attribute(_AGENT_CONFIG)
    return agent_config() if path is None else load_file(agent_config, path)
