"""``agent``: run an agent from its configuration file."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click

from dpu_agent.config import AgentConfig
from dpu_agent.runtime.process import Ready, compile_ahead, run_agent
from kvlane.config import load_file
from kvlane.errors import ConfigError, StorageError, VerbsError
from kvlane.jit import CACHE_DIR


class CannotStartError(click.ClickException):
    """Configuration, address or device; the code is the one that click gives wrong options."""

    exit_code = 2


def run_command(
    config: Callable[[], AgentConfig],
    *,
    announce: Callable[[Ready], None],
    stop_at_stdin_eof: bool = False,
) -> None:
    """Run an agent as the body of a command, and exit with its code.

    What keeps it from starting becomes one line on standard error, and exit code 2.
    """
    _log_to_stderr()
    try:
        code = run_agent(config(), announce=announce, stop_at_stdin_eof=stop_at_stdin_eof)
    except (ConfigError, StorageError, VerbsError) as error:
        raise CannotStartError(str(error)) from error
    sys.exit(code)


def warm_command(config: Callable[[], AgentConfig]) -> NoReturn:
    """Compile what an agent runs, and exit: 0 when all of it is compiled, else 1."""
    _log_to_stderr()
    try:
        compiled = compile_ahead(config())
    except (ConfigError, VerbsError) as error:
        raise CannotStartError(str(error)) from error
    if compiled:
        click.echo(f"compiled; kept in {CACHE_DIR}")
    sys.exit(0 if compiled else 1)


def _log_to_stderr() -> None:
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


@click.command()
@click.option(
    "--config",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Configuration file (YAML); defaults apply without one.",
)
@click.option("--listen", help="Control plane's host:port, instead of the file's.")
@click.option("--warm", is_flag=True, help="Compile everything, for an image, and end.")
def agent(path: Path | None, listen: str | None, warm: bool) -> None:
    """Serve a block store to hosts over RDMA."""

    def config() -> AgentConfig:
        loaded = load_file(AgentConfig, path) if path else AgentConfig()
        if listen is None:
            return loaded
        return replace(loaded, control=replace(loaded.control, listen=listen))

    def announce(ready: Ready) -> None:
        log = logging.getLogger(__name__)
        log.info(
            "serving at %s on %s, boot id %s", ready.control, ready.device, ready.boot_id.hex()
        )
        if ready.metrics:
            log.info("metrics at http://%s/metrics", ready.metrics)

    if warm:
        warm_command(config)
    run_command(config, announce=announce)
