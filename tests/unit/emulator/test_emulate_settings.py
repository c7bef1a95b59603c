"""``--set`` of ``kvlane emulate``: any setting, as YAML; what is wrong is said in a line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from emulator.cli import add_settings, emulate
from kvlane.errors import ConfigError


def test_values_are_yaml() -> None:
    mapping: dict[str, dict[str, object]] = {"store": {"policy": "lru"}}
    add_settings(mapping, ["store.policy=mq", "nvme.prefetch_bytes_per_s=1MiB", "data.workers=2"])
    assert mapping == {
        "store": {"policy": "mq"},
        "nvme": {"prefetch_bytes_per_s": "1MiB"},
        "data": {"workers": 2},
    }


@pytest.mark.parametrize("text", ["store", "store=1", "store.policy", ".=1", "=", "store.=x"])
def test_what_is_no_setting_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match=r"SECTION\.NAME=VALUE"):
        add_settings({}, [text])


def test_what_is_no_yaml_is_said() -> None:
    with pytest.raises(ConfigError, match="no YAML value"):
        add_settings({}, ["store.policy=[1"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("store.colour=red", "store.colour is an unknown key"),
        ("shop.policy=lru", "shop is an unknown key"),
        ("store.policy=none", "store.policy: 'none' is unknown"),
    ],
)
def test_the_agent_checks_them_as_it_does_its_file(text: str, said: str) -> None:
    result = CliRunner().invoke(emulate, ["--listen", "127.0.0.1:0", "--set", text])
    assert result.exit_code == 2
    assert said in result.output
