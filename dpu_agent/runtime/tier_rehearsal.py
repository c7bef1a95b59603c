"""A colder tier in memory, by which an agent that will have one of files tries its kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial

from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.cache.store import BlockStore
from dpu_agent.data.awaited import AwaitedBlocks
from dpu_agent.data.server import CapsuleServer
from dpu_agent.data.state import Notices
from dpu_agent.segments.requests import Completion, ItemStatus, Read, Record
from dpu_agent.tiers._shuffle_kernels import shuffle, unshuffle
from dpu_agent.tiers.cold_tier import ColdTier
from dpu_agent.tiers.mover import Pace, TierMover
from dpu_agent.tiers.prefetch import PrefetchMode
from dpu_agent.tiers.promotion import Wish
from kvlane.capsule import KeyArray, Opcode
from kvlane.seams import Clock

_COLD_BLOCKS = 8


class _Memory:
    """A medium that does everything at once."""

    def __init__(self) -> None:
        self._blocks: dict[int, bytes] = {}
        self._tickets = 0
        self._done: list[Completion] = []

    def append(self, records: Sequence[Record], *, durable: bool) -> int:  # noqa: ARG002
        first = len(self._blocks) + 1
        for location, record in enumerate(records, first):
            self._blocks[location] = ctypes.string_at(record.address, record.length)
        return self._complete(list(range(first, first + len(records))))

    def read(self, reads: Sequence[Read]) -> int:
        for read in reads:
            ctypes.memmove(read.address, self._blocks[read.location], read.capacity)
        return self._complete([read.location for read in reads])

    def delete(self, locations: Sequence[int], *, durable: bool) -> int:  # noqa: ARG002
        return self._complete(list(locations))

    def _complete(self, locations: list[int]) -> int:
        self._tickets += 1
        lengths = tuple(len(self._blocks[location]) for location in locations)
        statuses = (ItemStatus.OK,) * len(locations)
        self._done.append(Completion(self._tickets, statuses, tuple(locations), lengths))
        return self._tickets

    def poll(self) -> Sequence[Completion]:
        done, self._done = self._done, []
        return done

    def moved(self) -> Sequence[tuple[int, int]]:
        return ()


class TierRehearsal:
    """Looks after a colder tier in the thread that serves; see ``ColderTier``."""

    low_water_blocks = 1
    notices = Notices.ALL

    def __init__(self, hot: BlockStore, address: int, clock: Clock) -> None:
        """``address`` is where the memory of the hot store's slots begins."""
        self.store = BlockStore(
            capacity_blocks=_COLD_BLOCKS,
            block_bytes=hot.block_bytes,
            policy=make_policy("lru", _COLD_BLOCKS),
            seed=0,
        )
        self._hot = hot
        self._clock = clock
        # As if the medium were short of room: what leaves then is chosen by kernels too.
        cold = ColdTier(self.store, _Memory(), is_short=lambda _: True)
        self._mover = TierMover(hot, cold, address, Pace(PrefetchMode.NEXT_TURN))
        _try_shuffle()
        self._taken: list[AwaitedBlocks] = []

    def take(self, awaited: AwaitedBlocks) -> None:
        """Remember it for the next ``step``."""
        self._taken.append(awaited)

    def notice(self, chain: KeyArray) -> None:
        """Follow it as an agent does."""
        self._mover.notice(chain, self._clock())

    def press(self) -> None:
        """Nothing: every step makes room."""

    def forget(self, keys: KeyArray) -> None:
        """Let blocks be in the colder tier alone."""
        self._hot.delete(keys)

    def step(self, server: CapsuleServer) -> None:
        """Do what the server has handed over, and let it go on."""
        now = self._clock()
        taken, self._taken = self._taken, []
        for awaited in taken:
            self._begin(awaited, server, now)
        while self._mover.step(now):
            pass

    def _begin(self, awaited: AwaitedBlocks, server: CapsuleServer, now: int) -> None:
        def resume(succeeded: bool = True) -> None:
            server.resume(awaited, now, succeeded=succeeded)

        if awaited.opcode is Opcode.DELETE:
            self._mover.delete(awaited.keys, resume, now)
        elif awaited.opcode is Opcode.STORE:
            self._mover.keep(awaited.keys, resume)
        else:
            self._mover.want(awaited.keys, partial(self._grant, resume), now)

    def _grant(self, resume: Callable[[], None], wish: Wish) -> None:
        resume()
        self._mover.end(wish)


def _try_shuffle() -> None:
    """Kernels that compressed blocks go through."""
    memory = (ctypes.c_char * 2)()
    address = ctypes.addressof(memory)
    shuffle(address + 1, address, 1, 1)
    unshuffle(address, address + 1, 1, 1)
