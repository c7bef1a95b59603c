"""The ``kvlane`` command: help without imports, errors without tracebacks, exit codes."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner, Result

from host_driver.cli import main as cli_main
from host_driver.cli.main import SUBCOMMANDS, Subcommand, main
from host_driver.cli.replay import driver_config, full_target
from host_driver.cli.status import AgentReport, target_of
from host_driver.control import AgentCapabilities
from host_driver.replay.workload import Workload, available_memory_bytes, capacity_bytes
from kvlane.control import convert
from kvlane.control.v1 import control_pb2
from kvlane.errors import ConfigError, TransferError
from kvlane.namespace import Namespace
from tests.support.repository import ROOT, run_python


def kvlane(*args: str) -> Result:
    return CliRunner().invoke(main, args)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two subcommands more: one fails with an error of ours, one is interrupted."""
    module = ModuleType("kvlane_test_commands")

    @click.command()
    def fail() -> None:
        raise TransferError("the cable\n  was pulled")

    @click.command()
    def interrupt() -> None:
        raise KeyboardInterrupt

    module.fail, module.interrupt = fail, interrupt  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    more = {name: Subcommand(f"{module.__name__}:{name}", "") for name in ("fail", "interrupt")}
    monkeypatch.setattr(cli_main, "SUBCOMMANDS", {**SUBCOMMANDS, **more})


def test_help_says_what_there_is() -> None:
    result = kvlane("--help")
    assert result.exit_code == 0
    for name, entry in SUBCOMMANDS.items():
        assert f"\n  {name:7}  {entry.summary}" in result.stdout
    assert "kvlane replay --requests 200" in result.stdout


def test_help_imports_no_subcommand() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from host_driver.cli.main import main;"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0;"
        "late = ('dpu_agent', 'emulator', 'host_driver.cli.', 'host_driver.replay');"
        "early = ('host_driver.cli.main', 'host_driver.cli.lookup');"
        "found = [m for m in sys.modules if m.startswith(late) and m not in early];"
        "print(found)"
    )
    run = run_python(["-c", script], cwd=ROOT)
    assert run.stdout.strip() == "[]", run.stderr


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_can_be_imported_and_explains_itself(name: str) -> None:
    result = kvlane(name, "--help")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"Usage: kvlane {name} ")


def test_an_unknown_subcommand_is_a_usage_error() -> None:
    result = kvlane("rplay")
    assert result.exit_code == 2
    assert "No such command 'rplay'" in result.stderr


def test_version() -> None:
    try:
        installed = version("kvlane")
    except PackageNotFoundError:
        pytest.skip("the version is that of the installed distribution, and none is installed")
    assert kvlane("--version").stdout == f"kvlane, version {installed}\n"


@pytest.mark.usefixtures("broken")
def test_an_error_is_one_line_on_stderr_and_exit_code_2() -> None:
    result = kvlane("fail")
    assert result.exit_code == 2
    assert result.stderr == "error: the cable was pulled\n"
    assert result.stdout == ""


@pytest.mark.usefixtures("broken")
def test_debug_shows_where_an_error_came_from() -> None:
    result = kvlane("--debug", "fail")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.endswith("error: the cable was pulled\n")


@pytest.mark.usefixtures("broken")
def test_ctrl_c_ends_with_130_and_no_traceback() -> None:
    result = kvlane("interrupt")
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_config_show_prints_a_documented_file_that_loads_again(tmp_path: Path) -> None:
    shown = kvlane("config", "show")
    assert shown.exit_code == 0
    assert "# " in shown.stdout
    assert "block_bytes: 1MiB" in shown.stdout
    path = tmp_path / "agent.yaml"
    path.write_text(shown.stdout.replace("block_bytes: 1MiB", "block_bytes: 64KiB"))
    again = kvlane("config", "show", "--config", str(path))
    assert again.stdout == path.read_text()


def test_config_show_names_what_is_wrong_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("store:\n  capacity: 1GiB\n")
    result = kvlane("config", "show", "--config", str(path))
    assert result.exit_code == 2
    assert f"error: {path}: store.capacity is an unknown key" in result.stderr


def test_config_show_documents_the_settings_of_the_nic(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("device:\n  options:\n    listen: 127.0.0.1:4791\n")
    lines = kvlane("config", "show", "--config", str(path)).stdout.splitlines()
    at = lines.index("  options:")
    shown = lines[at + 1 : lines.index("store:")]
    assert "    listen: 127.0.0.1:4791" in shown
    assert "    mtu_bytes: 0" in shown
    assert any(line.startswith("    # Largest path MTU") for line in shown)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("lissten: 127.0.0.1:1", "device.options: lissten is an unknown key"),
        ("mtu_bytes: 1500", "mtu_bytes: no path MTU of 1500"),
        ("faults: gremlins=1", "'gremlins' is unknown"),
    ],
)
def test_config_show_refuses_what_the_nic_would_refuse(
    tmp_path: Path, options: str, says: str
) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(f"device:\n  options:\n    {options}\n")
    result = kvlane("config", "show", "--config", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"error: {path}: " in result.stderr
    assert says in result.stderr


@pytest.mark.parametrize(
    ("listen", "target"),
    [
        ("192.0.2.7:50058", "192.0.2.7:50058"),
        ("0.0.0.0:50057", "127.0.0.1:50057"),
        ("'[::]:50057'", "[::1]:50057"),
        ("'[2001:db8::7]:50057'", "[2001:db8::7]:50057"),
    ],
)
def test_status_asks_where_the_agents_configuration_says(
    tmp_path: Path, listen: str, target: str
) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(f"control:\n  listen: {listen}\n")
    assert target_of(path) == target


def test_status_cannot_ask_at_a_port_that_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("control:\n  listen: 127.0.0.1:0\n")
    result = kvlane("status", "--config", str(path))
    assert result.exit_code == 2
    assert "name the TARGET" in result.stderr


def test_status_takes_a_target_or_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("control:\n  listen: 127.0.0.1:1\n")
    asked = kvlane("status", "--config", str(path))
    assert asked.exit_code == 2
    assert "127.0.0.1:1" in asked.stderr
    both = kvlane("status", "127.0.0.1:1", "--config", str(path))
    assert both.exit_code == 2
    assert "give one of them" in both.stderr


CAPABILITIES = AgentCapabilities(
    version=(1, 2, 3),
    features=frozenset({"match", "checksum"}),
    max_capsule_bytes=65536,
    max_keys_per_capsule=1024,
    max_queue_depth=64,
    max_block_bytes=1 << 20,
    device="emulated 127.0.0.1:4791",
    boot_id=bytes(range(16)),
)


def stats() -> control_pb2.GetStatsResponse:
    namespace = Namespace(name="llama", kv_dtype="bfloat16", block_bytes=65536)
    attached = control_pb2.NamespaceStats(
        namespace=convert.namespace_message(namespace), sessions=2
    )
    return control_pb2.GetStatsResponse(
        uptime_ms=1500,
        sessions=2,
        store=control_pb2.StoreStats(capacity_blocks=1024, hits=12345, evicted=7),
        namespaces=[attached],
        commands={"MATCH": 10},
        device_counters={"retransmitted_packets": 3},
    )


def test_status_json_has_numbers_as_numbers() -> None:
    said = json.loads(AgentReport.of(CAPABILITIES, stats()).to_json())
    assert said["agent"]["version"] == "1.2.3"
    assert said["agent"]["boot_id"] == "000102030405060708090a0b0c0d0e0f"
    assert said["agent"]["features"] == ["checksum", "match"]
    assert said["store"]["hits"] == 12345
    assert said["store"]["stored"] == 0
    assert said["commands"] == {"MATCH": 10}
    assert said["namespaces"][0]["kv_dtype"] == "bfloat16"
    assert said["namespaces"][0]["sessions"] == 2


def test_status_tables_leave_out_parts_that_are_empty() -> None:
    titles = [table.title for table in AgentReport.of(CAPABILITIES, stats()).to_tables()]
    assert titles == ["agent", "store", "commands", "device counters", "namespaces"]
    idle = AgentReport.of(CAPABILITIES, control_pb2.GetStatsResponse())
    assert [table.title for table in idle.to_tables()] == ["agent", "store"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["status", "nowhere"], "'nowhere' is not an endpoint"),
        (["replay", "--block-bytes", "100"], "block bytes must be a multiple of 8"),
        (["replay", "--target", "127.0.0.1:1", "--capacity-gib", "2"], "--capacity-gib is for"),
        (["replay", "--target", "nowhere"], "'nowhere' is not an endpoint"),
        (["replay", "--capacity-gib", "nan"], "--capacity-gib must be above 0"),
        (["replay", "--capacity-gib", "inf"], "--capacity-gib must be above 0"),
        (["replay", "--capacity-gib", "-inf"], "--capacity-gib must be above 0"),
        (["replay", "--capacity-gib", "1e300"], "--capacity-gib must be above 0"),
        (["replay", "--capacity-gib", "0"], "--capacity-gib must be above 0"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(args: list[str], says: str) -> None:
    result = kvlane(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_status_of_an_agent_that_is_not_there_is_one_line() -> None:
    result = kvlane("status", "127.0.0.1:1")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "127.0.0.1:1" in result.stderr


CHAT = Workload(trace=None, limit=20, seed=1)


def test_a_private_emulated_agent_gets_slots_of_the_payloads_size() -> None:
    half = full_target("emulated:", 0.5, 4096, CHAT)
    assert half == "emulated:?capacity=536870912&block_bytes=4096"
    assert full_target("10.0.0.1:50057", None, 64, CHAT) == "10.0.0.1:50057"
    with pytest.raises(ConfigError, match="capacity"):
        full_target("emulated:?capacity=1GiB", 2.0, 64, CHAT)


def test_by_default_a_private_emulated_agent_has_room_for_every_block(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    line = '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": %s}\n'
    trace.write_text("".join(line % ids for ids in ([1, 2, 3], [1, 2, 4], [9] * 50)))
    for limit, blocks in ((None, 5), (2, 4)):
        target = full_target("emulated:", None, 64, Workload(trace, limit, 1))
        assert target == f"emulated:?capacity={blocks * 64}&block_bytes=64"


def test_default_capacity_leaves_half_of_the_memory_and_holds_a_block() -> None:
    assert capacity_bytes(10, 64, available_bytes=1 << 20) == 640
    assert capacity_bytes(10, 64, available_bytes=600) == 4 * 64
    assert capacity_bytes(10, 64, available_bytes=0) == 64
    assert capacity_bytes(0, 64, available_bytes=1 << 20) == 64
    assert available_memory_bytes() > 1 << 20


def test_options_of_the_nic_go_to_the_hosts_own_nic() -> None:
    config = driver_config("drop=0.01", 7, 5, "192.0.2.9:4791", 1024)
    assert config.device_options == {
        "faults": "drop=0.01",
        "seed": 7,
        "mtu_bytes": 1024,
        "listen": "192.0.2.9:4791",
    }
    assert config.queue_depth == 5


def test_the_nic_chooses_address_and_mtu_that_nobody_gives() -> None:
    options = driver_config("", 7, 5, None, 0).device_options
    assert "listen" not in options
    assert options["mtu_bytes"] == 0


@pytest.mark.parametrize("rounds", ["0", "-1"])
def test_a_benchmark_without_rounds_is_a_usage_error(rounds: str) -> None:
    result = kvlane("bench", "engine", "--rounds", rounds)
    assert result.exit_code == 2
    assert "Usage: kvlane bench" in result.stderr
    assert "--rounds" in result.stderr
