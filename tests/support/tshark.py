"""tshark, Wireshark's command line, as a reader of captures."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PATH = shutil.which("tshark")
needs_tshark = pytest.mark.skipif(
    PATH is None, reason="tshark is not installed; it is Debian's package of that name"
)

_GUESS = "rpcrdma_infiniband"
"""Looks for RPC over RDMA in every SEND; Wireshark 4.0 then calls an empty one malformed."""


def packet_fields(
    capture: Path, fields: tuple[str, ...], display_filter: str = ""
) -> list[dict[str, str]]:
    """The fields of each packet that passes the filter, as tshark writes them; first occurrences.

    tshark must be able to read the whole file.
    """
    command = ["tshark", "-n", "-r", str(capture), "-T", "fields", "-E", "separator=/t"]
    command += ["-E", "occurrence=f", "--disable-heuristic", _GUESS]
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
