"""``kvlane replay --tier`` against a private emulated agent: what it is started with."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from host_driver.cli.main import main
from host_driver.cli.replay_tiers import tiered_target
from host_driver.emulated import EmulatedOptions, parse_emulated
from kvlane.errors import ConfigError

MIB = 1 << 20


def options_of(*tiers: str, policies: tuple[str, ...] = (), undo: ExitStack) -> EmulatedOptions:
    return parse_emulated(tiered_target(tiers, policies, 4096, undo))


def test_memory_alone_has_the_policy() -> None:
    with ExitStack() as undo:
        options = options_of("dram=8MiB", policies=("mq",), undo=undo)
    assert (options.capacity, options.block_bytes) == (8 * MIB, 4096)
    assert (options.policy, options.nvme) == ("mq", "")


def test_above_files_the_policy_is_theirs(tmp_path: Path) -> None:
    folder = tmp_path / "a folder & more"
    with ExitStack() as undo:
        options = options_of(
            "dram=8MiB", f"nvme=64MiB:{folder}", policies=("reuse", "dram=sieve"), undo=undo
        )
    assert (options.policy, options.nvme_policy) == ("sieve", "reuse")
    assert (options.nvme, options.nvme_capacity) == (str(folder), 64 * MIB)
    assert options.nvme_segment * 8 == 64 * MIB


def test_files_without_a_place_are_gone_afterwards() -> None:
    with ExitStack() as undo:
        folder = Path(options_of("dram=8MiB", "nvme=64MiB", undo=undo).nvme)
        assert folder.is_dir()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("tiers", "complaint"),
    [
        (("hbm=1MiB", "dram=8MiB"), "only a replay in virtual time has this tier; add --virtual"),
        (("remote=1GiB",), "only a replay in virtual time"),
        (("nvme=1GiB",), "add --tier dram=SIZE"),
        (("dram=8MiB:/tmp",), "memory has no place"),
        (("dram=100",), "hold not one block of 4096"),
        (("dram=8MiB", "nvme=64KiB"), "too few for 8 files"),
    ],
)
def test_what_no_agent_has_is_named(tiers: tuple[str, ...], complaint: str) -> None:
    with ExitStack() as undo, pytest.raises(ConfigError, match=complaint):
        tiered_target(tiers, (), 4096, undo)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--tier", "dram=8MiB", "--target", "127.0.0.1:1"], "has its own tiers"),
        (["--policy", "lru", "--target", "127.0.0.1:1"], "has its own"),
        (["--tier", "dram=8MiB", "--capacity-gib", "1"], "leave one of them out"),
        (["--policy", "nvme=lru"], "no tier 'nvme' here"),
    ],
)
def test_options_that_do_not_go_together_are_named(options: list[str], complaint: str) -> None:
    result = CliRunner().invoke(main, ["replay", *options])
    assert result.exit_code == 2
    assert complaint in result.output
