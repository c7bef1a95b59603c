"""Held: the long first start says why it is long, and later ones say nothing."""

from __future__ import annotations

import pytest

from host_driver import DriverConfig, Namespace, opening
from host_driver.emulated import parse_emulated
from kvlane.errors import AgentUnreachableError
from kvlane.jit import CACHE_DIR

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize("warm", [False, True])
def test_only_a_first_start_says_that_it_compiles(
    warm: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opening, "is_warm", lambda _: warm)
    with pytest.raises(AgentUnreachableError):
        opening.open_session(NOBODY, Namespace(), DriverConfig())
    lines = capsys.readouterr().err.splitlines()
    if warm:
        assert lines == []
    else:
        (line,) = lines
        assert "compiling kernels" in line
        assert str(CACHE_DIR) in line


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {"link": "udp", "batching": "messages"}),
        ({"link": "udp"}, {"link": "udp", "batching": "messages"}),
        ({"batching": "auto"}, {"link": "udp", "batching": "auto"}),
        ({"link": "pcie"}, {"link": "pcie"}),
    ],
)
def test_the_drivers_nic_is_like_that_of_the_agent_that_it_starts(
    options: dict[str, object], wanted: dict[str, object]
) -> None:
    emulated = parse_emulated("emulated:?link=udp&batching=messages")
    config = opening._on_link(emulated, DriverConfig(device_options=options))
    assert config.device_options == wanted
