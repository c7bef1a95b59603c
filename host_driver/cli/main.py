"""``kvlane``: one command with subcommands that are imported when they are called."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from host_driver.cli.lookup import find_attribute
from kvlane.errors import KvlaneError

EXIT_ERROR = 2
"""What was asked for could not be done; also click's code for a wrong command line."""

EXIT_INTERRUPTED = 130
"""Ended by Ctrl-C, as shells have it: 128 + SIGINT."""


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand that is not imported yet."""

    target: str
    """``module:attribute`` of its ``click.Command``."""
    summary: str
    """One line for ``kvlane --help``."""


SUBCOMMANDS: Mapping[str, Subcommand] = {
    "replay": Subcommand(
        "host_driver.cli.replay:replay",
        "Replay a trace or synthetic chat, and verify every byte.",
    ),
    "plan": Subcommand(
        "dpu_agent.planning.cli:plan", "Hit rates of a trace by policy and capacity."
    ),
    "agent": Subcommand("dpu_agent.cli:agent", "Run the agent, the daemon on the DPU."),
    "status": Subcommand("host_driver.cli.status:status", "Show what an agent is and holds."),
    "config": Subcommand(
        "host_driver.cli.config:config", "Show the agent's settings with their documentation."
    ),
    "emulate": Subcommand("emulator.cli:emulate", "Run an agent on an emulated SmartNIC."),
    "bench": Subcommand("emulator.bench.cli:bench", "Measure this machine's data path."),
}
"""In the order of the help text. By name, so that the driver imports neither the agent nor
the emulator."""


class FailedCommandError(click.ClickException):
    """One line on stderr instead of a traceback."""

    exit_code = EXIT_ERROR

    def show(self, file: Any = None) -> None:
        """Print the error."""
        click.echo(f"error: {self.message}", file=file, err=True)


class KvlaneGroup(click.Group):
    """Imports a subcommand when it is called, and turns kvlane's errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names in the table's order."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a subcommand; None when there is none of that name."""
        if cmd_name not in SUBCOMMANDS:
            return None
        command: click.Command = find_attribute(SUBCOMMANDS[cmd_name].target)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """One line for each subcommand, from the table: nothing is imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in SUBCOMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run; a ``KvlaneError`` becomes one line and exit code 2, Ctrl-C exit code 130."""
        try:
            return super().invoke(ctx)
        except KvlaneError as error:
            _fail(error, debug=ctx.params["debug"])
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)


def _fail(error: KvlaneError, *, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exception(error)
    text = " ".join(str(error).split()) or type(error).__name__
    raise FailedCommandError(text) from error


@click.group("kvlane", cls=KvlaneGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="kvlane", prog_name="kvlane")
def main(debug: bool) -> None:
    """Keep the KV cache of LLM inference behind a DPU, a real or an emulated one.

    A host pushes lookups and blocks to an agent on the DPU: blocks go over RoCEv2, control
    over gRPC. Without a DPU everything runs on an emulated SmartNIC, with no hardware, no
    kernel module and no root.

    \b
    See it work on this machine, against a private emulated agent:
      kvlane replay --requests 200

    \b
    Run an emulated agent, and use it from another terminal:
      kvlane emulate
      kvlane status
      kvlane replay --target 127.0.0.1:50057

    Every command explains its options: kvlane COMMAND --help.
    """


if __name__ == "__main__":
    main()
