"""The real agent as a process of its own, on an emulated NIC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import TracebackType

from tests.support.repository import SOURCE_ROOTS

LIMIT_S = 300
"""A first start may compile kernels."""


def spawn(*arguments: str, module: str = "emulator") -> subprocess.Popen[str]:
    """Start ``python -m module`` with pipes for all three streams."""
    path = os.pathsep.join(str(root) for root in SOURCE_ROOTS)
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


class AgentProcess:
    """``python -m emulator`` on free ports; entering waits until it says that it is ready."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def __enter__(self) -> AgentProcess:
        self.process = spawn(
            "--listen=127.0.0.1:0", "--ready-json", "--exit-on-stdin-eof", *self._arguments
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, errors = self.process.communicate(timeout=LIMIT_S)
            raise AssertionError(f"the agent did not start: {errors}")
        ready = json.loads(line)
        self.control: str = ready["control"]
        self.boot_id = bytes.fromhex(ready["boot_id"])
        self.device: str = ready["device"]
        self.metrics: str = ready.get("metrics", "")
        return self

    def end(self) -> tuple[int, str, str]:
        """Close its standard input; return exit code and what was left of its output."""
        out, errors = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, errors

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=LIMIT_S)
