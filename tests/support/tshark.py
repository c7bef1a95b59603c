"""tshark, Wireshark's command line, as a reader of captures."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.requirements import ALL_ARE_REQUIRED, lacking

PATH = shutil.which("tshark")
_ABSENT = "tshark is not installed; it is Debian's package of that name"
needs_tshark = pytest.mark.skipif(PATH is None and not ALL_ARE_REQUIRED, reason=_ABSENT)
"""For tests that call ``packet_fields``."""

_GUESS = "rpcrdma_infiniband"
"""Looks for RPC over RDMA in every SEND; Wireshark 4.0 then calls an empty one malformed."""

_ZERO_CHECKSUM = "udp.ignore_ipv6_zero_checksum:TRUE"
"""RoCEv2 has no UDP checksum over IPv6 either."""


def packet_fields(
    capture: Path, fields: tuple[str, ...], display_filter: str = ""
) -> list[dict[str, str]]:
    """The fields of each packet that passes the filter, as tshark writes them; first occurrences.

    tshark must be able to read the whole file.
    """
    if PATH is None:
        lacking(_ABSENT)
    command = [PATH, "-n", "-r", str(capture), "-T", "fields", "-E", "separator=/t"]
    command += ["-E", "occurrence=f", "--disable-heuristic", _GUESS, "-o", _ZERO_CHECKSUM]
    if display_filter:
        command += ["-Y", display_filter]
    for field in fields:
        command += ["-e", field]
    done = subprocess.run(
        command,
        env={**os.environ, "WIRESHARK_CONFIG_DIR": str(capture.parent)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [dict(zip(fields, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]
