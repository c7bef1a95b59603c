"""A drop-in for pyverbs on emulated devices.

A program written for pyverbs runs on it unchanged: ``python -m emulator.pyverbs PROGRAM``.
Inside a test, ``with emulator.pyverbs.devices(2): ...`` makes ``import pyverbs`` resolve to
the modules of this package for the length of the block. Names, arguments, values and errors
are those of pyverbs; what has no meaning in software raises ``PyverbsRDMAError`` with
``EOPNOTSUPP``.
"""

from emulator.pyverbs.loader import devices

__all__ = ["devices"]
