"""Errors of pyverbs."""

from __future__ import annotations

import os

_NO_CODE = -1


class PyverbsError(Exception):
    """Root of what pyverbs raises; a code is written out behind the message."""

    def __init__(self, msg: str, error_code: int = _NO_CODE) -> None:
        if error_code != _NO_CODE:
            msg = f"{msg}. Errno: {error_code}, {os.strerror(abs(error_code))}"
        super().__init__(msg)


class PyverbsRDMAError(PyverbsError):
    """The device, or the library below, refused; ``error_code`` is an errno, -1 for none."""

    def __init__(self, msg: str, error_code: int = _NO_CODE) -> None:
        super().__init__(msg, error_code)
        self._error_code = error_code

    @property
    def error_code(self) -> int:
        """The errno."""
        return self._error_code


class PyverbsUserError(PyverbsError):
    """The caller's mistake, such as an argument of a wrong form."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
