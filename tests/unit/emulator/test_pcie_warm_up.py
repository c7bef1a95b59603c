"""A device that is open compiles nothing any more that it calls from Python."""

from __future__ import annotations

import subprocess
import sys

_CHECK = """
from emulator.pcie import _entry_kernels as kernels
from emulator.pcie.device import PcieDevice
from kvlane.jit import JIT_ENABLED

PcieDevice().close()
names = ("give_up_peer", "notify", "forget", "post_send", "post_recv", "poll_cq", "doze")
late = [name for name in names if JIT_ENABLED and not getattr(kernels, name).signatures]
assert not late, late
"""


def test_what_only_failures_need_is_compiled_with_the_device() -> None:
    assert subprocess.run([sys.executable, "-c", _CHECK], check=False).returncode == 0
