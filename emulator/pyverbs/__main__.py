"""``python -m emulator.pyverbs``: run a program written for pyverbs on emulated devices."""

from __future__ import annotations

import dataclasses
import os
import runpy
import sys
import time
from dataclasses import dataclass
from types import ModuleType

import click

from emulator.nic.links import RAW, LinkPlace, open_link
from emulator.pyverbs.config import FabricConfig
from emulator.pyverbs.loader import installed
from host_driver.self_test import self_test
from kvlane.config import load_file, load_mapping
from kvlane.errors import ConfigError
from kvlane.jit import CACHE_DIR, JIT_ENABLED, is_warm, mark_warm
from kvlane.verbs.backends import open_device

_WARM_UP = "pyverbs"


@dataclass(frozen=True, slots=True)
class _Run:
    """What to run, on which devices."""

    config: FabricConfig
    module: str | None
    code: str | None
    words: tuple[str, ...]
    """The program unless there is a module or code, and its arguments."""


@click.command(
    name="python -m emulator.pyverbs",
    context_settings={"allow_interspersed_args": False},
)
@click.option("--devices", type=int, help="Number of devices; 1 by default.")
@click.option(
    "--mtu",
    "mtu_bytes",
    type=int,
    help="Largest path MTU; by default what the interface holds.",
)
@click.option("--link", help="What carries packets: udp (the default), or raw for RoCEv2 proper.")
@click.option("--interface", help="Interface of the raw link, such as eth0.")
@click.option("--listen", help="Address and UDP port of the first device; 127.0.0.1:0 by default.")
@click.option("--addressing", help="What GIDs are: virtual (the default) or ipv4.")
@click.option(
    "--congestion-bps", type=int, help="Line rate for congestion control; 0, the default, is none."
)
@click.option("--faults", help="Faults of the link, such as drop=0.01,dup=0.01; none by default.")
@click.option("--seed", type=int, help="Seed of the faults; another one each run by default.")
@click.option("--pcap", help="File for all packets, for Wireshark.")
@click.option("--trace", help="File for all events, one JSON object a line.")
@click.option("--config", "config_file", help="YAML file with these options; the others override.")
@click.option("-m", "module", metavar="MODULE", help="Run a module instead of a file.")
@click.option("-c", "code", metavar="CODE", help="Run a text instead of a file.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]...")
def _parse(
    *,
    config_file: str | None,
    module: str | None,
    code: str | None,
    words: tuple[str, ...],
    **options: str | int | None,
) -> _Run:
    """Run PROGRAM, written for pyverbs, on emulated devices of this process.

    Imports of pyverbs resolve to the emulator, in the program and in the children it forks.
    Programs in several processes reach each other by the GIDs of their devices.
    """
    if module is None and code is None and not words:
        raise click.UsageError("name a program, or a module behind -m, or code behind -c")
    if module is None and code is None and not os.path.exists(words[0]):
        raise click.UsageError(f"there is no program {words[0]!r}")
    try:
        config = _config(config_file, options)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    return _Run(config, module, code, words)


def _config(config_file: str | None, options: dict[str, str | int | None]) -> FabricConfig:
    """What the file says, and on top of it what was given as an option."""
    given = {name: value for name, value in options.items() if value is not None}
    base = load_file(FabricConfig, config_file) if config_file else FabricConfig()
    merged = {**dataclasses.asdict(base), **given}
    return load_mapping(FabricConfig, merged, "command line")


def _require_link(config: FabricConfig) -> None:
    """Say what an interface lacks before the program starts, which opens devices when it likes."""
    if config.link != RAW:
        return
    try:
        place = LinkPlace(config.link, config.interface, config.endpoint(0), config.mtu_bytes)
        open_link(place)[0].close()
    except ConfigError as error:
        click.UsageError(str(error)).show()
        sys.exit(2)


def _compile_kernels() -> None:
    """Let a NIC talk to itself first: a program's own time limits must not meet a compiler."""
    if not is_warm(_WARM_UP):
        click.echo(f"kvlane: compiling kernels, once; kept in {CACHE_DIR}", err=True)
    device = open_device("emulator", {"listen": "127.0.0.1:0"})
    try:
        if self_test(device, time.monotonic_ns):
            mark_warm(_WARM_UP)
    finally:
        device.close()


def _execute(run: _Run) -> None:
    """Run as the interpreter would, with the same ``sys.argv`` and first entry of the path."""
    if run.code is not None:
        sys.argv = ["-c", *run.words]
        sys.path.insert(0, "")
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(run.code, "<string>", "exec"), main.__dict__)
    elif run.module is not None:
        sys.argv = [run.module, *run.words]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(run.module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(run.words)
        sys.path.insert(0, os.path.dirname(os.path.abspath(run.words[0])))
        runpy.run_path(run.words[0], run_name="__main__")


def _split(words: list[str]) -> list[str]:
    """End the options behind ``-m MODULE`` and ``-c CODE``, as the interpreter does."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        takes_next_word = "=" not in words[at]
        if words[at] in ("-m", "-c"):
            return [*words[: at + 2], "--", *words[at + 2 :]]
        at += 2 if takes_next_word else 1
    return words


def main() -> None:
    """Parse the command line, install devices and run."""
    try:
        run = _parse.main(_split(sys.argv[1:]), standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    if isinstance(run, _Run):  # and not the end of --help
        _require_link(run.config)
        if JIT_ENABLED:
            _compile_kernels()
        with installed(run.config):
            _execute(run)


if __name__ == "__main__":
    main()
