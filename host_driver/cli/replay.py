"""``kvlane replay``: a trace, or synthetic chat, against an agent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from host_driver.cli.lookup import find_attribute
from host_driver.cli.replay_tiers import check_has_tiers, tiered_target
from host_driver.client import connect
from host_driver.config import MIN_STAGING_BYTES, DriverConfig
from host_driver.emulated import SCHEME
from host_driver.replay.chat import BLOCK_TOKENS
from host_driver.replay.page import as_page
from host_driver.replay.report import ReplayResult
from host_driver.replay.runner import Replay, ReplayOptions
from host_driver.replay.workload import (
    CHAT_REQUESTS,
    Workload,
    available_memory_bytes,
    capacity_bytes,
)
from kvlane.errors import ConfigError
from kvlane.limits import DEFAULT_QUEUE_DEPTH, MAX_QUEUE_DEPTH
from kvlane.namespace import Namespace
from kvlane.report.page import write_page
from kvlane.tier_sizes import DRAM, HOTTER_POLICY, parse_policies

VIRTUAL = "--virtual"
VIRTUAL_TARGET = "dpu_agent.planning.replay_cli:virtual_replay"
"""The command that replays in virtual time. By name, so that the driver imports no agent."""

EXIT_WRONG_BYTES = 1
"""Some block came back other than it was stored."""

MAX_CAPACITY_GIB = 1 << 20
"""More than any machine has; keeps infinities out."""


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """What to replay, and against which agent."""

    workload: Workload
    target: str
    options: ReplayOptions
    driver: DriverConfig

    @property
    def namespace(self) -> Namespace:
        """Blocks of two sizes share no namespace, so the size is part of its name."""
        return Namespace(
            name=f"kvlane-replay-{self.options.block_bytes}",
            model="payload-from-key",
            block_tokens=BLOCK_TOKENS,
            block_bytes=self.options.block_bytes,
        )

    async def run(self, on_request: Callable[[int], None]) -> ReplayResult:
        """Connect, replay, close."""
        dpu = await connect(self.target, namespace=self.namespace, config=self.driver)
        async with dpu:
            return await Replay(dpu, self.options, on_request).run(self.workload.requests())


def full_target(
    target: str,
    capacity_gib: float | None,
    block_bytes: int,
    workload: Workload,
    policy: str | None = None,
) -> str:
    """``emulated:`` with its slots, capacity and policy; every other target as it is.

    By default the workload fits, so that nothing is evicted, as far as memory allows.
    ``ConfigError`` when a capacity is none, or asked of an agent that has its own.
    """
    if capacity_gib is not None and not 0 < capacity_gib <= MAX_CAPACITY_GIB:
        raise ConfigError(
            f"--capacity-gib must be above 0 and at most {MAX_CAPACITY_GIB}, not {capacity_gib}"
        )
    if target == SCHEME:
        if capacity_gib is None:
            capacity = capacity_bytes(
                workload.unique_blocks(), block_bytes, available_memory_bytes()
            )
        else:
            capacity = int(capacity_gib * 2**30)
        chosen = f"&policy={policy}" if policy else ""
        return f"{SCHEME}?capacity={capacity}&block_bytes={block_bytes}{chosen}"
    if policy is not None:
        raise ConfigError(f"--policy is for --target {SCHEME} alone; {target} has its own")
    if capacity_gib is not None:
        raise ConfigError(
            f"--capacity-gib is for --target {SCHEME} alone; {target} says its own capacity"
        )
    return target


def driver_config(
    faults: str, seed: int, queue_depth: int, data_listen: str | None, mtu_bytes: int
) -> DriverConfig:
    """The driver's settings for a replay."""
    options: dict[str, object] = {"faults": faults, "seed": seed, "mtu_bytes": mtu_bytes}
    if data_listen is not None:
        options["listen"] = data_listen
    return DriverConfig(
        device_options=options,
        queue_depth=queue_depth,
        # Blocks come and go through registered memory, so nothing is staged.
        staging_bytes=MIN_STAGING_BYTES,
    )


def rdma_driver_config(
    device: str, queue_depth: int, mtu_bytes: int, emulated: dict[str, str | None]
) -> DriverConfig:
    """The same over an RDMA device; ``emulated`` holds options that only an emulated NIC has."""
    for name, value in emulated.items():
        if value:
            raise ConfigError(f"{name} is for the emulated NIC; leave it out with --rdma-device")
    return DriverConfig(
        verbs="pyverbs",
        device_options={"device": device, "mtu_bytes": mtu_bytes},
        queue_depth=queue_depth,
        staging_bytes=MIN_STAGING_BYTES,
    )


def run_with_progress(job: ReplayJob) -> ReplayResult:
    """Run a job with a progress bar on standard error, where that is a terminal."""
    columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    shown = Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())
    with shown as progress:
        task = progress.add_task("replay", total=job.workload.total)
        return asyncio.run(job.run(lambda done: progress.update(task, completed=done)))


class ReplayCommand(click.Command):
    """With ``--virtual`` the command is another one, with options of its own."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the arguments, or have the other command parse them."""
        if VIRTUAL not in args:
            return super().make_context(info_name, args, parent, **extra)
        command: click.Command = find_attribute(VIRTUAL_TARGET)
        others = [argument for argument in args if argument != VIRTUAL]
        return command.make_context(f"{info_name} {VIRTUAL}", others, parent, **extra)


@click.command(cls=ReplayCommand)
@click.argument(
    "trace", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    VIRTUAL,
    is_flag=True,
    expose_value=False,
    help="In virtual time instead: no agent and no payload, many tiers and policies; see kvlane "
    "replay --virtual --help.",
)
@click.option(
    "--target",
    default=SCHEME,
    show_default=True,
    help="host:port of an agent's control plane, or emulated: for a private emulated agent.",
)
@click.option(
    "--requests",
    "limit",
    type=click.IntRange(min=1),
    help=f"Stop after this many.  [default: all of a trace, {CHAT_REQUESTS} of the chat]",
)
@click.option(
    "--block-bytes",
    default=65536,
    show_default=True,
    help="Payload of a block: a multiple of 8 that fits the agent's slots.",
)
@click.option(
    "--capacity-gib",
    type=float,
    help="Capacity of a private emulated agent.  [default: all blocks of the workload, up to "
    "half of the memory that is available]",
)
@click.option(
    "--tier",
    "tiers",
    multiple=True,
    metavar="NAME=SIZE[:DIR]",
    help="Memory (dram) of a private emulated agent, and files (nvme) below it, in DIR or in a "
    "temporary folder: --tier dram=64MiB --tier nvme=1GiB.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="[TIER=]NAME",
    help="Eviction policy of the coldest tier of a private emulated agent, or of the one named; "
    f"the others have {HOTTER_POLICY}.  [default: {HOTTER_POLICY}]",
)
@click.option(
    "--concurrency",
    default=8,
    show_default=True,
    type=click.IntRange(min=1),
    help="Requests in flight. It does not change what is hit, as long as nothing is evicted.",
)
@click.option(
    "--queue-depth",
    default=DEFAULT_QUEUE_DEPTH,
    show_default=True,
    type=click.IntRange(1, MAX_QUEUE_DEPTH),
    help="Commands in flight on the connection.",
)
@click.option(
    "--data-listen",
    help="host:port (UDP) of this host's emulated NIC, which the agent must reach.  [default: "
    "the address of the route to TARGET, a free port]",
)
@click.option(
    "--rdma-device",
    metavar="NAME",
    help="RDMA device of this host, such as mlx5_0, to use through pyverbs instead of an "
    "emulated NIC.",
)
@click.option(
    "--mtu",
    default=0,
    show_default=True,
    help="Largest path MTU in bytes; 0 takes the largest that fits the interface.",
)
@click.option(
    "--faults",
    default="",
    help="Faults of this host's emulated link, both ways, such as drop=0.01,corrupt=0.001.",
)
@click.option(
    "--seed", default=1, show_default=True, help="Seed of the synthetic chat and of the faults."
)
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write HTML there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.pass_context
def replay(  # noqa: PLR0913 - one argument for each option, as click passes them
    ctx: click.Context,
    *,
    trace: Path | None,
    target: str,
    limit: int | None,
    block_bytes: int,
    capacity_gib: float | None,
    tiers: tuple[str, ...],
    policies: tuple[str, ...],
    concurrency: int,
    queue_depth: int,
    data_listen: str | None,
    rdma_device: str | None,
    mtu: int,
    faults: str,
    seed: int,
    report: Path | None,
    as_json: bool,
) -> None:
    """Replay TRACE against an agent, and verify every byte that comes back.

    For each request the agent is asked for the longest stored prefix of its blocks; what
    is there is retrieved and verified, the rest is stored.

    TRACE has the Mooncake format, a JSON object a line: timestamp (ms), input_length and
    output_length (tokens), hash_ids (blocks of the prompt). Without TRACE, a synthetic
    multi-turn chat is replayed.

    Exit code 1 says that some block came back wrong.
    """
    options = ReplayOptions(block_bytes, concurrency)
    if rdma_device is None:
        driver = driver_config(faults, seed, queue_depth, data_listen, mtu)
    else:
        emulated = {"--data-listen": data_listen, "--faults": faults}
        driver = rdma_driver_config(rdma_device, queue_depth, mtu, emulated)
    workload = Workload(trace, limit, seed)
    with ExitStack() as undo:
        if tiers:
            check_has_tiers(target, capacity_gib)
            full = tiered_target(tiers, policies, block_bytes, undo)
        else:
            policy = parse_policies(policies, [DRAM])[DRAM] if policies else None
            full = full_target(target, capacity_gib, block_bytes, workload, policy)
        result = run_with_progress(ReplayJob(workload, full, options, driver))
    if report is not None:
        write_page(report, as_page(result, trace.name if trace else "synthetic chat"))
    if as_json:
        click.echo(result.to_json())
    else:
        Console().print(result.to_table())
    if result.verification_errors:
        ctx.exit(EXIT_WRONG_BYTES)
