"""What MATCH commands ask for, kept for Python, which may have blocks brought into memory ahead.

A ring of keys and one of how many belong together. Whoever is to be told may be slow: what finds no
room is left out, for a guess that comes late is of no use.
"""

from __future__ import annotations

from typing import Any

from dpu_agent.data.state import Notices, Serving, server_at
from kvlane.jit import kernel
from kvlane.limits import KEY_BYTES
from kvlane.rawmem import copy, words_at

NOTICED_KEYS = 8192
NOTICED_CHAINS = 256
_NONE = int(Notices.NONE)
_ALL = int(Notices.ALL)


@kernel
def note_chain(serving: Serving, keys: Any, ends_cold: bool) -> None:
    """A MATCH has this chain; ``ends_cold`` says that part of it lies in a colder tier."""
    server = server_at(serving.server, 0)
    count = len(keys)
    if server.notices == _NONE or not (ends_cold or server.notices == _ALL) or count == 0:
        return
    if server.noticed_keys_tail - server.noticed_keys_head + count > NOTICED_KEYS:
        return
    waiting = server.noticed_tail - server.noticed_head
    if waiting == NOTICED_CHAINS:
        return
    place = server.noticed_keys_tail % NOTICED_KEYS
    first = min(count, NOTICED_KEYS - place)
    source = int(keys.ctypes.data)
    copy(server.noticed_keys + place * KEY_BYTES, source, first * KEY_BYTES)
    if first < count:
        copy(server.noticed_keys, source + first * KEY_BYTES, (count - first) * KEY_BYTES)
    words_at(server.noticed, NOTICED_CHAINS)[server.noticed_tail % NOTICED_CHAINS] = count
    server.noticed_keys_tail += count
    server.noticed_tail += 1
    # What is in memory anyway can wait for the next time that Python looks.
    if ends_cold or 2 * waiting > NOTICED_CHAINS:
        server.attention = 1


@kernel
def take_chain(server_addr: int, into: Any) -> int:
    """Copy the oldest chain that was noticed; how many keys it has, 0 when there is none."""
    server = server_at(server_addr, 0)
    if server.noticed_head == server.noticed_tail:
        return 0
    chains = words_at(server.noticed, NOTICED_CHAINS)
    count = int(chains[server.noticed_head % NOTICED_CHAINS])
    place = server.noticed_keys_head % NOTICED_KEYS
    first = min(count, NOTICED_KEYS - place)
    target = int(into.ctypes.data)
    copy(target, server.noticed_keys + place * KEY_BYTES, first * KEY_BYTES)
    if first < count:
        copy(target + first * KEY_BYTES, server.noticed_keys, (count - first) * KEY_BYTES)
    server.noticed_keys_head += count
    server.noticed_head += 1
    return count
