"""``emulate``: an agent on an emulated SmartNIC, for development and tests without hardware."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

import click
import yaml

from dpu_agent.cli import run_command
from dpu_agent.config import DEFAULT_SPIN_US, AgentConfig
from dpu_agent.runtime.process import Ready
from emulator.link.batching import AUTO, BATCHING
from emulator.nic.links import PCIE, UDP
from emulator.pcie.channels import AUTO_CHANNELS
from kvlane.config import load_mapping
from kvlane.errors import ConfigError
from kvlane.limits import DEFAULT_CONTROL_PORT


@click.command()
@click.option(
    "--listen",
    default=f"127.0.0.1:{DEFAULT_CONTROL_PORT}",
    show_default=True,
    help="Control plane's host:port; port 0 takes a free one.",
)
@click.option(
    "--data-listen",
    default="127.0.0.1:0",
    show_default=True,
    help="The emulated NIC's host:port (UDP); hosts must be able to reach it.",
)
@click.option(
    "--link",
    type=click.Choice([UDP, PCIE]),
    default=UDP,
    show_default=True,
    help="udp: RoCEv2 in datagrams, from any host; pcie: shared memory, from this host only.",
)
@click.option(
    "--batching",
    type=click.Choice(BATCHING),
    default=AUTO,
    show_default=True,
    help="How the udp link moves many packets by one call: as segments (UDP_SEGMENT, UDP_GRO) or "
    "as messages (sendmmsg, recvmmsg).",
)
@click.option(
    "--spin-us",
    default=DEFAULT_SPIN_US,
    show_default=True,
    help="How long to look for work before sleeping, in microseconds.",
)
@click.option(
    "--workers",
    default=0,
    show_default=True,
    help="Threads that serve commands; 0 is one for every two processors.",
)
@click.option(
    "--channels",
    default=AUTO_CHANNELS,
    show_default=True,
    help="Processors that copy together on the pcie link; 0 chooses by those there are.",
)
@click.option("--capacity", default="1GiB", show_default=True, help="Memory for blocks.")
@click.option("--block-bytes", default="1MiB", show_default=True, help="Size of a slot.")
@click.option("--policy", default="lru", show_default=True, help="Eviction policy.")
@click.option(
    "--nvme",
    "directories",
    default="",
    help="Directories for a tier below memory, with ':' between them; there is none by default.",
)
@click.option("--nvme-capacity", default="16GiB", show_default=True, help="In each of them.")
@click.option("--nvme-segment", default="256MiB", show_default=True, help="Size of their files.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.NAME=VALUE",
    help="Any other setting of the agent, such as nvme.prefetch=next_turn; `kvlane config show` "
    "lists them.",
)
@click.option(
    "--metrics",
    default="",
    help="Serve metrics for Prometheus at this host:port; port 0 takes a free one.",
)
@click.option("--faults", default="", help="Faults of the emulated link; none by default.")
@click.option("--seed", default=0, show_default=True, help="Seed of the faults.")
@click.option(
    "--mtu",
    default=0,
    show_default=True,
    help="Largest path MTU in bytes; 0 takes the largest that fits the interface.",
)
@click.option("--ready-json", is_flag=True, help="Print one JSON line when ready to serve.")
@click.option(
    "--exit-on-stdin-eof", is_flag=True, help="End with standard input, for a parent process."
)
def emulate(  # noqa: PLR0913 - one argument for each option, as click passes them
    *,
    listen: str,
    data_listen: str,
    link: str,
    batching: str,
    spin_us: int,
    workers: int,
    channels: int,
    capacity: str,
    block_bytes: str,
    policy: str,
    directories: str,
    nvme_capacity: str,
    nvme_segment: str,
    settings: tuple[str, ...],
    metrics: str,
    faults: str,
    seed: int,
    mtu: int,
    ready_json: bool,
    exit_on_stdin_eof: bool,
) -> None:
    """Serve a block store to hosts over an emulated RDMA NIC; no hardware, no root."""

    def config() -> AgentConfig:
        options = {
            "link": link,
            "batching": batching,
            "listen": data_listen,
            "mtu_bytes": mtu,
            "faults": faults,
            "seed": seed,
            "channels": channels,
        }
        mapping: dict[str, dict[str, object]] = {
            "control": {"listen": listen},
            "device": {"verbs": "emulator", "options": options},
            "store": {
                "capacity_bytes": capacity,
                "block_bytes": block_bytes,
                "policy": policy,
            },
            "nvme": {
                "directories": directories,
                "capacity_bytes": nvme_capacity,
                "segment_bytes": nvme_segment,
            },
            "data": {"spin_us": spin_us, "workers": workers},
            "metrics": {"listen": metrics},
        }
        add_settings(mapping, settings)
        return load_mapping(AgentConfig, mapping, "command line")

    run_command(
        config,
        announce=_print_json if ready_json else _log_ready,
        stop_at_stdin_eof=exit_on_stdin_eof,
    )


def add_settings(mapping: dict[str, dict[str, object]], settings: Iterable[str]) -> None:
    """Put settings of the form ``section.name=value`` into a mapping of sections."""
    for text in settings:
        name, is_one, value = text.partition("=")
        section, _, setting = name.partition(".")
        if not is_one or not section or not setting:
            raise ConfigError(f"--set {text}: write SECTION.NAME=VALUE, as in store.policy=reuse")
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {text}: {value!r} is no YAML value ({error})") from error
        mapping.setdefault(section, {})[setting] = parsed


def _print_json(ready: Ready) -> None:
    line = {"control": ready.control, "boot_id": ready.boot_id.hex(), "device": ready.device}
    if ready.metrics:
        line["metrics"] = ready.metrics
    click.echo(json.dumps(line))


def _log_ready(ready: Ready) -> None:
    log = logging.getLogger(__name__)
    log.info("serving at %s on %s", ready.control, ready.device)
    if ready.metrics:
        log.info("metrics at http://%s/metrics", ready.metrics)
