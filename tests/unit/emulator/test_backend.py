"""The emulated NIC behind the verbs protocols: its options are checked.

What it shares with every other backend is in ``tests/unit/kvlane/test_verbs_contract.py``.
"""

from __future__ import annotations

import pytest

from emulator.backend import open_device
from kvlane.errors import ConfigError, VerbsError
from kvlane.verbs.protocols import QpOptions


@pytest.mark.parametrize(
    "options", [{"ack_timeout_code": 32}, {"max_send_wr": 0}, {"retry_count": 8}]
)
def test_options_out_of_range_are_named(options: dict[str, int]) -> None:
    with pytest.raises(VerbsError, match=next(iter(options))):
        QpOptions(**options)


@pytest.mark.parametrize(
    "options",
    [{"lissten": "127.0.0.1:0"}, {"mtu_bytes": 1500}, {"faults": "drop=2"}, {"listen": "here"}],
)
def test_options_of_the_nic_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_device(options)
