"""``kvlane status``: what an agent is, and what it holds now."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from host_driver.cli.agent_config import load_agent_config
from host_driver.control import AgentCapabilities, ControlClient
from kvlane.config import parse_endpoint
from kvlane.control.v1 import control_pb2
from kvlane.errors import ConfigError
from kvlane.limits import DEFAULT_CONTROL_PORT

DEFAULT_TARGET = f"127.0.0.1:{DEFAULT_CONTROL_PORT}"

_OWN_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to ask an agent that listens on every address."""

Value = str | int | bool | list[str]
_SHOWN_NAMESPACE_FIELDS = ("name", "model", "kv_dtype", "block_bytes")


@dataclass(frozen=True, slots=True)
class AgentReport:
    """An agent's capabilities and counters, ready to be shown."""

    agent: Mapping[str, Value]
    store: Mapping[str, Value]
    commands: Mapping[str, Value]
    device_counters: Mapping[str, Value]
    namespaces: Sequence[Mapping[str, Value]]
    """Fields of each descriptor and ``sessions``, how many are attached."""

    @classmethod
    def of(
        cls, capabilities: AgentCapabilities, stats: control_pb2.GetStatsResponse
    ) -> AgentReport:
        """From the answers of the control plane."""
        agent: dict[str, Value] = {
            "version": ".".join(map(str, capabilities.version)),
            "boot_id": capabilities.boot_id.hex(),
            "device": capabilities.device,
            "uptime_ms": stats.uptime_ms,
            "sessions": stats.sessions,
            "draining": stats.draining,
            "features": sorted(capabilities.features),
            "max_block_bytes": capabilities.max_block_bytes,
            "max_keys_per_capsule": capabilities.max_keys_per_capsule,
            "max_capsule_bytes": capabilities.max_capsule_bytes,
            "max_queue_depth": capabilities.max_queue_depth,
        }
        namespaces = [
            {**_fields_of(entry.namespace), "sessions": entry.sessions}
            for entry in stats.namespaces
        ]
        return cls(
            agent=agent,
            store=_fields_of(stats.store),
            commands=dict(sorted(stats.commands.items())),
            device_counters=dict(sorted(stats.device_counters.items())),
            namespaces=namespaces,
        )

    def to_json(self) -> str:
        """One JSON object; numbers are numbers."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    def to_tables(self) -> list[Table]:
        """A table for each part that has something to say."""
        parts = {
            "agent": self.agent,
            "store": self.store,
            "commands": self.commands,
            "device counters": self.device_counters,
        }
        tables = [_two_columns(title, values) for title, values in parts.items() if values]
        if self.namespaces:
            tables.append(_namespace_table(self.namespaces))
        return tables


def _fields_of(message: control_pb2.StoreStats | control_pb2.Namespace) -> dict[str, Value]:
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else value


def _two_columns(title: str, values: Mapping[str, Value]) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column("name")
    table.add_column("value", justify="right", overflow="fold")
    for name, value in values.items():
        table.add_row(name, _text(value))
    return table


def _namespace_table(namespaces: Sequence[Mapping[str, Value]]) -> Table:
    table = Table(title="namespaces", title_justify="left")
    columns = (*_SHOWN_NAMESPACE_FIELDS, "sessions")
    for name in columns:
        table.add_column(name, overflow="fold")
    for namespace in namespaces:
        table.add_row(*(_text(namespace[name]) for name in columns))
    return table


def target_of(path: Path) -> str:
    """Where an agent with this configuration file is asked, on its own machine."""
    host, port = parse_endpoint(load_agent_config(path).control.listen)
    if port == 0:
        raise ConfigError(f"{path}: control.listen takes any free port; name the TARGET instead")
    host = _OWN_ADDRESS.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@click.command()
@click.argument("target", required=False)
@click.option(
    "--config",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The agent's YAML file, which says where it listens, instead of TARGET.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def status(target: str | None, path: Path | None, as_json: bool) -> None:
    """Show what the agent at TARGET is and holds.

    TARGET is the host:port of its control plane, 127.0.0.1:50057 by default.
    """
    if target is not None and path is not None:
        raise click.UsageError("TARGET and --config both say which agent; give one of them")
    if target is None:
        target = DEFAULT_TARGET if path is None else target_of(path)
    parse_endpoint(target)
    client = ControlClient(target)
    try:
        report = AgentReport.of(client.get_capabilities(), client.stats())
    finally:
        client.close()
    if as_json:
        click.echo(report.to_json())
        return
    console = Console()
    for table in report.to_tables():
        console.print(table)
