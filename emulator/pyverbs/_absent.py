"""Objects that only other devices have."""

from __future__ import annotations

from typing import Any

from emulator.pyverbs.base import PyverbsCM, PyverbsObject, not_supported


class AbsentObject(PyverbsCM):
    """Cannot be made here; programs ask with ``isinstance`` whether they have one."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 (whatever a vendor takes)
        super().__init__()
        not_supported(type(self).__name__)


class AbsentAttributes(PyverbsObject):
    """Attributes of such an object; they can be written down, and serve no purpose here."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        self.positional = args
        self.options = options
