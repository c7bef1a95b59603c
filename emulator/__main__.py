"""``python -m emulator``: the ``emulate`` command."""

from emulator.cli import emulate

emulate(prog_name="python -m emulator")
