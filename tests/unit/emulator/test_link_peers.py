"""The raw link's table of peers: it is like a dict, and what frames may do to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.link._peer_kernels import (
    ASK_AGAIN_NS,
    DOUBT_NS,
    PEER,
    find_peer,
    hear_peer,
    learn_peer,
)
from emulator.link._raw_kernels import PORT
from kvlane.verbs.records import new_records

MAC, OTHER_MAC, GROUP_MAC = 0x02_00_00_00_00_02, 0x02_00_00_00_00_99, 0x01_00_5E_00_00_01
BROADCAST_MAC = (1 << 48) - 1
IPV4 = 0xFFFF << 32

GIDS = [(0, IPV4 | 0x0A00_0000 | n) for n in range(12)]
GIDS += [(-0x0180_0000_0000_0000, n) for n in range(12)]
GIDS += [((0x2001_0DB8 << 32) | n, -1) for n in range(8)]


class Table:
    """Kernels' records with room for ``peers``."""

    def __init__(self, peers: int) -> None:
        self.port = new_records(PORT, 1)[0]
        self.records = new_records(PEER, 2 * peers)
        self.port.peers, self.port.peer_slots = self.records.ctypes.data, 2 * peers

    def learn(self, gid: tuple[int, int], mac: int, now: int = 0) -> int:
        return int(learn_peer(self.port, *gid, mac, now))

    def get(self, gid: tuple[int, int]) -> Any:
        """Its record, or ``None``."""
        slot = find_peer(self.port, *gid)
        return None if slot < 0 else self.records[slot]

    def macs(self) -> dict[tuple[int, int], int]:
        """All that can be found."""
        found = {gid: self.get(gid) for gid in GIDS}
        return {gid: int(peer.mac) for gid, peer in found.items() if peer is not None}


lessons = st.lists(st.tuples(st.sampled_from(GIDS), st.integers(1, 200)), max_size=80)


@given(lessons)
def test_with_room_for_all_it_is_a_dict(taught: list[tuple[tuple[int, int], int]]) -> None:
    table, model = Table(32), {}
    for now, (gid, mac) in enumerate(taught):
        slot = table.learn(gid, mac, now)
        model[gid] = mac
        record = table.records[slot]
        assert record.tolist()[:4] == (*gid, mac, now)
    assert table.macs() == model
    assert table.port.peer_count == len(model)


@given(lessons, st.sampled_from([1, 2, 4, 8]))
def test_a_full_one_forgets_one_peer_for_each_new_one(
    taught: list[tuple[tuple[int, int], int]], room: int
) -> None:
    table: Table = Table(room)
    model: dict[tuple[int, int], int] = {}
    for gid, mac in taught:
        table.learn(gid, mac)
        left = table.macs()
        assert left[gid] == mac
        assert left.items() <= {**model, gid: mac}.items()
        was_new = gid not in model
        assert len(left) == min(len(model) + was_new, room)
        assert (table.port.peer_count, np.count_nonzero(table.records.mac)) == (len(left),) * 2
        model = left


def test_peers_of_one_subnet_are_spread_over_the_slots() -> None:
    """A search that begins anywhere is over after a few slots."""
    table = Table(1024)
    for n in range(1024):
        table.learn((0, IPV4 | 0x0A4D_0000 | n), MAC)
    taken = np.flatnonzero(np.append(table.records.mac, 1) == 0)
    assert np.diff(taken).max() < 64


@pytest.mark.parametrize("mac", [0, GROUP_MAC, BROADCAST_MAC], ids=hex)
def test_macs_of_nobody_are_refused(mac: int) -> None:
    table = Table(4)
    assert table.learn(GIDS[0], mac) == -1
    assert table.learn(GIDS[1], MAC) >= 0
    assert table.learn(GIDS[1], mac) == -1
    assert table.macs() == {GIDS[1]: MAC}


def test_a_stranger_is_not_learnt_from_a_frame() -> None:
    table = Table(4)
    hear_peer(table.port, *GIDS[0], MAC, 5)
    assert table.macs() == {}


def test_a_frame_confirms_the_mac_that_it_comes_from() -> None:
    table = Table(4)
    table.learn(GIDS[0], MAC, now=5)
    for now in (9, 7):  # whoever receives may give an old time
        hear_peer(table.port, *GIDS[0], MAC, now)
    assert table.get(GIDS[0]).confirmed_at == 9


def is_doubtful(table: Table, now: int) -> bool:
    return bool(now - table.get(GIDS[0]).confirmed_at > DOUBT_NS)


def test_another_mac_is_not_believed_but_asked_for_once_a_while() -> None:
    table = Table(4)
    table.learn(GIDS[0], MAC, now=5)
    for now, doubtful in ((5 + ASK_AGAIN_NS - 1, False), (5 + ASK_AGAIN_NS, True)):
        hear_peer(table.port, *GIDS[0], OTHER_MAC, now)
        assert table.get(GIDS[0]).mac == MAC
        assert is_doubtful(table, now) == doubtful


@pytest.mark.parametrize("mac", [0, GROUP_MAC, BROADCAST_MAC], ids=hex)
def test_a_frame_from_nobody_does_nothing(mac: int) -> None:
    table = Table(4)
    table.learn(GIDS[0], MAC, now=5)
    hear_peer(table.port, *GIDS[0], mac, 5 + ASK_AGAIN_NS)
    assert (table.get(GIDS[0]).mac, table.get(GIDS[0]).confirmed_at) == (MAC, 5)
