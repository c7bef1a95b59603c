"""Logs of when a device's requests were posted and completed, in files that another process reads.

All processes of a host have one monotonic clock, so stamps of both ends compare.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from emulator.bench import _stamp_kernels as kernels
from emulator.bench._stamp_kernels import COMPLETED, LOG, POSTED, STAMP, STAMPED
from kvlane.verbs.calls import VerbCalls
from kvlane.verbs.enums import WcOpcode, WrOpcode
from kvlane.verbs.protocols import Device
from kvlane.verbs.records import new_records

CAPACITY = 1 << 16


class StampLog:
    """A file of stamps; who opens it first makes it."""

    def __init__(self, path: Path) -> None:
        nbytes = LOG.itemsize + CAPACITY * STAMP.itemsize
        if not path.exists():
            path.write_bytes(bytes(nbytes))
        self._bytes = np.memmap(path, np.uint8, "r+", shape=(nbytes,))
        self._head = self._bytes[: LOG.itemsize].view(LOG)
        self._head["capacity"] = CAPACITY
        self._stamps = self._bytes[LOG.itemsize :].view(STAMP)
        self.address = int(self._bytes.ctypes.data)

    @property
    def stamps(self) -> np.ndarray[Any, Any]:
        """All that was noted, in order."""
        return np.array(self._stamps[: int(self._head["count"][0])])


class Moment(NamedTuple):
    """A call that brought a request or a completion of a kind."""

    begin_ns: int
    end_ns: int


def posted(stamps: np.ndarray[Any, Any], opcode: WrOpcode) -> list[Moment]:
    """When requests of a kind were posted."""
    return _moments(stamps, POSTED, int(opcode))


def completed(stamps: np.ndarray[Any, Any], opcode: WcOpcode) -> list[Moment]:
    """When completions of a kind were polled."""
    return _moments(stamps, COMPLETED, int(opcode))


def _moments(stamps: np.ndarray[Any, Any], kind: int, opcode: int) -> list[Moment]:
    chosen = stamps[(stamps["kind"] == kind) & (stamps["opcode"] == opcode)]
    return [
        Moment(begin, end)
        for begin, end in zip(chosen["begin_ns"].tolist(), chosen["end_ns"].tolist(), strict=True)
    ]


class StampedDevice:
    """A device as it is, but for its table of verbs, which notes in a log what passes."""

    def __init__(self, device: Device, log: StampLog) -> None:
        self._device, self._log = device, log
        behind = device.calls
        self._record = new_records(STAMPED, 1)
        record = self._record[0]
        for name in ("context", "progress", "poll_cq", "post_send", "post_recv", "sleep"):
            record[name] = getattr(behind, name)
        record.log = log.address
        self.calls = VerbCalls(
            context=int(self._record.ctypes.data),
            wanted=behind.wanted,
            progress=kernels.PROGRESS.address,
            poll_cq=kernels.POLL_CQ.address,
            post_send=kernels.POST_SEND.address,
            post_recv=kernels.POST_RECV.address,
            sleep=kernels.SLEEP.address,
            sums_reads=behind.sums_reads,
        )
        """The verbs for compiled loops."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)
