"""What the upstream tests ask the machine about a device, answered for an emulated one.

They run `rdma link show -j` and `ip -j addr show IFNAME` to find the network interface and
address of a device, and `cat` on a file of sysfs for its P_Key. No kernel knows an emulated
device, so programs of these names stand first on PATH, answer exactly that, and hand
everything else on to the real ones.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PORT = 1
DEFAULT_PKEY = 0xFFFF
"""What P_Key index 0 holds unless a subnet manager says otherwise (IBA 10.9.1.2)."""

PROBE_TIMEOUT_S = 120
SYSFS = "/sys/class/infiniband"


class ProbeError(Exception):
    """The drop-in could not even list its devices."""


@dataclass(frozen=True)
class Device:
    """An emulated device as a program sees it."""

    name: str
    ip_address: str

    @property
    def interface(self) -> str:
        """The name of its network interface."""
        return f"{self.name}-net"


def probe(launcher: Sequence[str], environment: Mapping[str, str]) -> list[Device]:
    """The devices that a program started by ``launcher`` finds."""
    script = Path(__file__).with_name("probe.py")
    done = subprocess.run(
        [*launcher, str(script)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROBE_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise ProbeError(f"the drop-in did not list its devices:\n{done.stderr.strip()[-2000:]}")
    return [Device(**entry) for entry in json.loads(done.stdout)]


def make_programs(folder: Path, devices: Sequence[Device]) -> Path:
    """Write `rdma`, `ip` and `cat` that know ``devices``; the folder to put on PATH."""
    programs, facts = folder / "bin", folder / "facts"
    programs.mkdir()
    facts.mkdir()
    (facts / "link").write_text(json.dumps([_link(device) for device in devices]))
    for number, device in enumerate(devices):
        (facts / device.interface).write_text(json.dumps([_address(number, device)]))
        pkeys = facts / "sysfs" / device.name / "ports" / str(PORT) / "pkeys"
        pkeys.mkdir(parents=True)
        (pkeys / "0").write_text(f"{DEFAULT_PKEY:#06x}\n")
    cat, known = shlex.quote(shutil.which("cat") or "cat"), shlex.quote(str(facts))
    _program(programs, "rdma", "link show -j", f"exec {cat} {known}/link")
    for device in devices:
        name = device.interface
        _program(programs, "ip", f"-j addr show {name}", f"exec {cat} {known}/{name}")
    _program(programs, "cat", f"{SYSFS}/*", f'exec {cat} {known}/sysfs"${{1#{SYSFS}}}"')
    for program in programs.iterdir():
        _end_program(program)
    return programs


def environment(root: Path, runtime: Path, programs: Path | None = None) -> dict[str, str]:
    """The environment of a child: our packages, and ``programs`` before those of the machine.

    Listeners of connection management meet in ``runtime``, so that another run on the machine,
    whose tests listen at the same port, is not in the way.
    """
    path = os.environ.get("PATH", os.defpath)
    return {
        **os.environ,
        "XDG_RUNTIME_DIR": str(runtime),
        "PATH": path if programs is None else f"{programs}{os.pathsep}{path}",
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "proto")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def drop_in(options: Sequence[str] = ()) -> tuple[str, ...]:
    """The command that runs a program on emulated devices."""
    return (sys.executable, "-m", "emulator.pyverbs", *options)


def _link(device: Device) -> dict[str, object]:
    return {
        "ifname": device.name,
        "port": PORT,
        "state": "ACTIVE",
        "physical_state": "LINK_UP",
        "netdev": device.interface,
    }


def _address(number: int, device: Device) -> dict[str, object]:
    # Only tests with raw packets look at the MAC address.
    return {
        "ifname": device.interface,
        "address": f"02:00:00:00:00:{number + 1:02x}",
        "addr_info": [{"family": "inet", "local": device.ip_address}],
    }


def _program(folder: Path, name: str, arguments: str, answer: str) -> None:
    """Add to the shell program ``name`` what it answers to ``arguments``."""
    pattern = arguments.replace(" ", r"\ ")
    path = folder / name
    start = path.read_text() if path.exists() else '#!/bin/sh\ncase "$*" in\n'
    path.write_text(f"{start}{pattern}) {answer} ;;\n")


def _end_program(path: Path) -> None:
    real = shutil.which(path.name)
    miss = f'exec {shlex.quote(real)} "$@"' if real else f'echo "{path.name}: $*?" >&2; exit 1'
    path.write_text(f"{path.read_text()}esac\n{miss}\n")
    path.chmod(0o755)
