"""What deploy/ says is what the code does: ports, options, configuration, paths."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields, replace
from pathlib import Path

import click
import pytest

from dpu_agent.cli import CannotStartError
from dpu_agent.config import AgentConfig, DeviceConfig
from emulator.nic.options import AUTO_MTU, NicOptions
from host_driver.cli.main import main
from kvlane.config import load_file, load_mapping
from kvlane.hardware.options import HardwareOptions
from kvlane.limits import DEFAULT_CONTROL_PORT, ROCE_V2_UDP_PORT
from kvlane.verbs.backends import options_type
from tests.support.repository import ROOT

DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "kvlane-agent.service").read_text()
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()


def agent_config() -> AgentConfig:
    return load_file(AgentConfig, DEPLOY / "agent.yaml")


def unit_value(name: str) -> str:
    """The value of a setting that the unit has exactly once."""
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.M)
    return str(value)


def image_words(instruction: str) -> list[str]:
    """The words of an instruction of the Containerfile, plain or in exec form."""
    (rest,) = re.findall(rf"^{instruction} (.*)$", CONTAINERFILE, re.M)
    return re.findall(r'[^\[\]", ]+', rest)


def check_command(words: list[str]) -> None:
    """Fail unless ``words`` (``kvlane``, command, options) is a command line that exists."""
    assert Path(words[0]).name == "kvlane"
    command = main.get_command(click.Context(main), words[1])
    assert command is not None, f"kvlane has no command {words[1]}"
    known = {option for p in command.params for option in p.opts if isinstance(p, click.Option)}
    assert {word for word in words if word.startswith("-")} <= known


def test_example_configuration_is_the_default_but_for_the_port_of_the_nic() -> None:
    config, default = agent_config(), AgentConfig()
    assert config.control == default.control
    assert config.store == default.store
    assert config.sessions == default.sessions
    assert config.metrics == default.metrics
    assert config.device.verbs == default.device.verbs == "emulator"
    nic = load_mapping(NicOptions, config.device.options)
    assert nic == NicOptions(listen=f"127.0.0.1:{ROCE_V2_UDP_PORT}")
    assert config.device.options["mtu_bytes"] == AUTO_MTU


def test_example_for_rdma_devices_differs_in_the_device_alone() -> None:
    config = load_file(AgentConfig, DEPLOY / "agent-rdma.yaml")
    assert replace(config, device=DeviceConfig()) == AgentConfig()
    assert config.device.verbs == "pyverbs"
    assert load_mapping(options_type("pyverbs"), config.device.options) == HardwareOptions()
    assert set(config.device.options) == {field.name for field in fields(HardwareOptions)}


def test_the_drop_in_for_rdma_devices_lifts_what_the_unit_forbids() -> None:
    drop_in = (DEPLOY / "rdma.conf").read_text()
    assert unit_value("PrivateDevices") == "yes"
    assert "AF_NETLINK" not in unit_value("RestrictAddressFamilies")
    assert "\nPrivateDevices=no\n" in drop_in
    assert "\nRestrictAddressFamilies=AF_NETLINK\n" in drop_in, "such a list adds to the unit's"
    assert "\nDeviceAllow=char-infiniband_verbs rw\n" in drop_in


def test_ports_are_those_of_the_contract() -> None:
    config = agent_config()
    assert config.control.listen.endswith(f":{DEFAULT_CONTROL_PORT}")
    assert str(config.device.options["listen"]).endswith(f":{ROCE_V2_UDP_PORT}")
    assert image_words("EXPOSE") == [f"{DEFAULT_CONTROL_PORT}/tcp", f"{ROCE_V2_UDP_PORT}/udp"]
    prose = (DEPLOY / "README.md").read_text()
    assert f"TCP {DEFAULT_CONTROL_PORT}" in prose
    assert f"UDP {ROCE_V2_UDP_PORT}" in prose


def test_unit_starts_a_command_that_exists() -> None:
    words = shlex.split(unit_value("ExecStart"))
    check_command(words)
    assert words[2:] == ["--config", "/etc/kvlane/agent.yaml"]


def test_image_starts_and_asks_with_commands_that_exist() -> None:
    start = image_words("ENTRYPOINT") + image_words("CMD")
    check_command(start)
    assert start[-1] == image_words("COPY deploy/agent.yaml")[0]
    check = image_words(" +CMD")
    check_command(check)
    assert check[2:] == ["--config", start[-1]], "the agent may listen elsewhere than by default"


def test_unit_keeps_kernels_where_the_code_looks_for_them() -> None:
    assert unit_value("Environment") == f"KVLANE_CACHE_DIR=%C/{unit_value('CacheDirectory')}"
    assert "KVLANE_CACHE_DIR=/var/cache/kvlane" in CONTAINERFILE
    assert "KVLANE_CACHE_DIR" in (ROOT / "proto" / "kvlane" / "jit.py").read_text()


def test_unit_is_confined_but_may_compile_and_pin_memory() -> None:
    assert unit_value("DynamicUser") == "yes"
    assert unit_value("LimitMEMLOCK") == "infinity"
    assert unit_value("Restart") == "on-failure"
    assert unit_value("RestartPreventExitStatus") == str(CannotStartError.exit_code)
    assert unit_value("NoNewPrivileges") == "yes"
    assert not re.search(r"^MemoryDenyWriteExecute=", UNIT, re.M), "kernels could not be compiled"


def test_image_does_not_run_as_root() -> None:
    (user,) = image_words("USER")
    assert user not in {"root", "0"}
    assert CONTAINERFILE.index("\nUSER ") > CONTAINERFILE.index("pip install")


def test_image_copies_everything_that_the_build_reads() -> None:
    copied = " ".join(re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINERFILE, re.M)).split()
    wanted = {"pyproject.toml", "README.md", "LICENSE", "proto"}
    assert wanted | {"dpu_agent", "host_driver", "emulator"} <= set(copied)


@pytest.mark.parametrize("words", [["kvlane", "fly"], ["kvlane", "status", "--no-such-option"]])
def test_control_commands(words: list[str]) -> None:
    with pytest.raises(AssertionError):
        check_command(words)
