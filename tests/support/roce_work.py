"""Work requests with everything that they can say, and what comes back of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.link.gid import gid_halves
from emulator.roce.state import RQE, WQE
from kvlane.verbs.enums import SendFlags, WcStatus, WrOpcode
from kvlane.verbs.records import new_records
from tests.support.roce_pair import QKEY, Port, Region

Element = tuple[int, int, int]
"""Address, length, lkey."""


def part(region: Region, offset: int = 0, length: int | None = None) -> Element:
    """A scatter/gather element over a part of a region; without a length, over the rest."""
    return region.addr + offset, len(region.data) - offset if length is None else length, region.key


def _fill_elements(entry: Any, elements: Sequence[Element]) -> None:
    entry.num_sge = len(elements)
    entry.length = sum(length for _, length, _ in elements)
    for i, (addr, length, lkey) in enumerate(elements):
        entry.sge_addr[0][i] = addr
        entry.sge_length[0][i] = length
        entry.sge_lkey[0][i] = lkey


def work(
    opcode: WrOpcode,
    elements: Sequence[Element] = (),
    flags: int = SendFlags.SIGNALED,
    **fields: int,
) -> Any:
    """One send work request; ``fields`` are further fields of its record."""
    entry = new_records(WQE, 1)
    entry.wr_id = 1
    entry.opcode = int(opcode)
    entry.send_flags = int(flags)
    _fill_elements(entry, elements)
    for name, value in fields.items():
        entry[name] = value
    return entry


def receive(elements: Sequence[Element] = (), wr_id: int = 1) -> Any:
    """One receive work request."""
    entry = new_records(RQE, 1)
    entry.wr_id = wr_id
    _fill_elements(entry, elements)
    return entry


def towards(region: Region, offset: int = 0) -> dict[str, int]:
    """The fields that name remote memory."""
    return {"remote_addr": region.addr + offset, "rkey": region.key}


def to_port(peer: Port, number: int | None = None, qkey: int = QKEY) -> dict[str, int]:
    """The fields that send a datagram to a queue pair of ``peer``."""
    hi, lo = gid_halves(peer.engine.gid)
    return {
        "ud_hi": hi,
        "ud_lo": lo,
        "ud_port": 4791,
        "ud_qpn": peer.number if number is None else number,
        "ud_qkey": qkey,
    }


def post(port: Port, *works: Any) -> None:
    """Post send work requests on the port's queue pair, in one batch."""
    port.engine.qps.post_work(port.qp, np.concatenate(works).view(np.recarray))


def post_receive(port: Port, *entries: Any) -> None:
    """Post receives on the port's queue pair, in one batch."""
    port.engine.qps.post_receives(port.qp, np.concatenate(entries).view(np.recarray))


def statuses(completions: Sequence[Any]) -> list[WcStatus]:
    """How each of them ended."""
    return [WcStatus(int(wc.status)) for wc in completions]


def wr_ids(completions: Sequence[Any]) -> list[int]:
    """Whose each of them is."""
    return [int(wc.wr_id) for wc in completions]


def pattern(nbytes: int, seed: int = 0) -> Any:
    """Bytes of which none is 0, so that each that is missing shows."""
    return np.random.default_rng(seed).integers(1, 256, nbytes, dtype=np.uint8)
