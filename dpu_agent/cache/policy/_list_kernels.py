"""Doubly linked lists whose links lie in one array, 8 bytes a node.

A node is a slot or another row number; each list has a row of its own, its head, beyond the
nodes. The head's ``newer`` is the oldest node and its ``older`` the newest; alone, it points to
itself. A node is in one list at most, and leaves without saying in which it was.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache._slot_kernels import is_pinned_at
from dpu_agent.cache.policy.base import NO_VICTIM
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

LINK = np.dtype([("older", "i4"), ("newer", "i4")])
Links = NDArray[np.void]
"""Shape (nodes + heads,), dtype LINK."""
link_at = record_accessor(LINK)


def new_links(nodes: int, heads: int = 1) -> Links:
    """Links of so many nodes, which are in no list, and so many empty lists."""
    links = np.zeros(nodes + heads, LINK)
    own = np.arange(nodes, nodes + heads)
    links["older"][nodes:] = own
    links["newer"][nodes:] = own
    return links


def listed(links: Links, head: int) -> list[int]:
    """The nodes of a list, oldest first."""
    nodes: list[int] = []
    node = int(links["newer"][head])
    while node != head:
        nodes.append(node)
        node = int(links["newer"][node])
    return nodes


def append_all(links: Links, nodes: int, which: int) -> None:
    """Put all nodes, which are in no list, into one of those whose heads lie beyond them."""
    order = np.arange(nodes)
    head = nodes + which
    links["older"][:nodes] = order - 1
    links["newer"][:nodes] = order + 1
    links["older"][0] = links["newer"][nodes - 1] = head
    links["newer"][head] = 0
    links["older"][head] = nodes - 1


@kernel
def append(links: int, head: int, node: int) -> None:
    """Link a node that is in no list, as the newest."""
    newest = np.int64(link_at(links, head).older)
    row = link_at(links, node)
    row.older = newest
    row.newer = head
    link_at(links, newest).newer = node
    link_at(links, head).older = node


@kernel
def unlink(links: int, node: int) -> None:
    """Take a node out of its list."""
    row = link_at(links, node)
    older, newer = np.int64(row.older), np.int64(row.newer)
    link_at(links, older).newer = newer
    link_at(links, newer).older = older


@kernel
def oldest(links: int, head: int) -> int:
    """The oldest node, or the head where there is none."""
    return int(np.int64(link_at(links, head).newer))


@kernel
def newest(links: int, head: int) -> int:
    """The newest node, or the head where there is none."""
    return int(np.int64(link_at(links, head).older))


@kernel
def newer_than(links: int, node: int) -> int:
    """The next node towards the newest; after that, the head."""
    return int(np.int64(link_at(links, node).newer))


@kernel
def oldest_unpinned(links: int, head: int, slot_table: int) -> int:
    """The oldest listed slot without a pin, or ``NO_VICTIM``."""
    slot = oldest(links, head)
    while slot != head:
        if not is_pinned_at(slot_table, slot):
            return slot
        slot = newer_than(links, slot)
    return NO_VICTIM
