"""A file that only grows, record by record, and whose failure hurts nobody but itself."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_log = logging.getLogger(__name__)

FileTarget = str | Path | BinaryIO
"""A path, of which an older file is replaced, or a binary file that its owner closes."""


class RecordFile:
    """Appends records, each of them whole.

    Every record is with the kernel when ``append`` returns, so a killed process leaves a
    file that can be read. The first failure, such as a full disk, ends the recording with
    one warning: a half-written record is cut off, and what comes later is counted.
    """

    def __init__(self, target: FileTarget) -> None:
        self._owned = isinstance(target, str | Path)
        self._file: BinaryIO
        if isinstance(target, str | Path):
            self._file = open(target, "wb", buffering=0)  # noqa: SIM115 -- closed by close()
        else:
            self._file = target
        self._nbytes = 0
        self._recording = True
        self.lost_records = 0
        """Records that came after the recording had ended."""

    def append(self, data: bytes, records: int = 1) -> bool:
        """Write ``data``, which holds that many records; False when they are lost."""
        if not self._recording:
            self.lost_records += records
            return False
        try:
            self._write(data)
        except (OSError, ValueError) as error:  # ValueError: the owner has closed it
            self._give_up(error, records)
            return False
        self._nbytes += len(data)
        return True

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        self._file.flush()

    def _give_up(self, error: Exception, records: int) -> None:
        self._recording = False
        self.lost_records += records
        if self._owned:
            with suppress(OSError):
                self._file.truncate(self._nbytes)
        _log.warning("recording to %s ends here: %s", getattr(self._file, "name", "file"), error)

    def close(self) -> None:
        """End the recording; what comes later is lost without a warning."""
        self._recording = False
        if self._owned:
            with suppress(OSError):
                self._file.close()
