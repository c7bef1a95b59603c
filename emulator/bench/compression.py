"""``compression``: what it makes of blocks of 1 MiB, and what that costs one core.

Rates are by processor time: that is what an agent has to spare, and others do not disturb it.

Blocks are KV-like (``kv_blocks``), or random bytes for those that do not shrink. Beside our codec
stands zstd alone: its level 1 as it comes, over blocks that were not shuffled; and memcpy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpu_agent.tiers.block_codec import BlockCodec, require_zstandard
from emulator.bench.clock import cpu_seconds_per_gb
from emulator.bench.kv_blocks import kv_block
from emulator.bench.memcpy import Memcpy
from emulator.bench.report import MissingPeer, Report, summarise
from emulator.bench.rounds import Measure, Progress, alternate
from emulator.bench.workload import MIB, random_bytes
from kvlane.errors import ConfigError, KvlaneError
from kvlane.rawmem import copy, crc32

NAME = "compression"
BLOCKS = 16
TURN_BLOCKS = 128
LEVEL = 1
_RATIO, _RATIO_WITHOUT = "ratio", "ratio without the shuffle"
_COMPRESS, _DECOMPRESS = "compress", "decompress"
_REFUSE = "refuse"
_ZSTD_COMPRESS, _ZSTD_DECOMPRESS = "zstd alone, compress", "zstd alone, decompress"
_MEMCPY = "memcpy"
_Block = NDArray[np.uint8]


class CodecTurns:
    """A codec, and blocks that it compresses and decompresses one after the other."""

    def __init__(self, blocks: list[_Block], turn_blocks: int, element_bytes: int = 2) -> None:
        self._codec = BlockCodec(LEVEL, element_bytes, MIB)
        self._blocks = blocks
        self._turn = [number % len(blocks) for number in range(turn_blocks)]
        self._sums = [crc32(0, _address(block), len(block)) for block in blocks]
        self._target = np.empty(MIB, np.uint8)
        self._stored = [self._encode(number) for number in range(len(blocks))]
        self._slot = np.empty(MIB, np.uint8)

    def _encode(self, number: int) -> _Block:
        """The compressed bytes of a block; none where it does not shrink."""
        target = self._target
        block = self._blocks[number]
        stored = self._codec.encode(_address(block), MIB, self._sums[number], target.data)
        compressed: _Block = target[:stored].copy()
        return compressed

    @property
    def is_refused(self) -> bool:
        """Whether no block shrinks."""
        return not any(map(len, self._stored))

    @property
    def ratio(self) -> float:
        """Bytes of all blocks for each that is stored."""
        return len(self._blocks) * MIB / sum(len(stored) or MIB for stored in self._stored)

    def encode_gbps(self) -> float:
        """Bytes of blocks that are compressed, or found not to shrink."""
        return _core_gbps(self._encode_all)

    def _encode_all(self) -> int:
        for number in self._turn:
            block = self._blocks[number]
            self._codec.encode(_address(block), MIB, self._sums[number], self._target.data)
        return len(self._turn) * MIB

    def decode_gbps(self) -> float:
        """Bytes of blocks that are decompressed, their checksums compared."""
        return _core_gbps(self._decode_all)

    def _decode_all(self) -> int:
        for number in self._turn:
            stored = self._stored[number]
            # As a read leaves it: in the slot that the block will have.
            copy(_address(self._slot), _address(stored), len(stored))
            if not self._codec.decode(_address(self._slot), len(stored), MIB):
                raise KvlaneError("a block did not come back")
        return len(self._turn) * MIB


class ZstdTurns:
    """The library on its own, over the same blocks."""

    def __init__(self, blocks: list[_Block], turn_blocks: int) -> None:
        import zstandard

        self._compressor = zstandard.ZstdCompressor(level=LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()
        self._turn = [blocks[number % len(blocks)] for number in range(turn_blocks)]
        frames = [self._compressor.compress(block.data) for block in blocks]
        self._frames = [frames[number % len(blocks)] for number in range(turn_blocks)]

    def compress_gbps(self) -> float:
        """Bytes that are compressed."""
        return _core_gbps(lambda: sum(self._compress(block) for block in self._turn))

    def _compress(self, block: _Block) -> int:
        self._compressor.compress(block.data)
        return int(block.nbytes)

    def decompress_gbps(self) -> float:
        """Bytes that come of it."""
        return _core_gbps(lambda: sum(map(self._decompress, self._frames)))

    def _decompress(self, frame: bytes) -> int:
        return len(self._decompressor.decompress(frame))


def _core_gbps(work: Callable[[], int]) -> float:
    """10^9 bytes of ``work``, which returns its bytes, for a second of processor."""
    return 1 / cpu_seconds_per_gb(work)


def _address(block: _Block) -> int:
    return int(block.ctypes.data)


def run(rounds: int, progress: Progress, turn_blocks: int = TURN_BLOCKS) -> Report:
    """Measure."""
    report = Report()
    try:
        require_zstandard("this compresses blocks")
    except ConfigError as error:
        report.miss([MissingPeer("zstandard", str(error))])
        return report
    progress("making blocks")
    blocks = [kv_block(MIB, seed) for seed in range(BLOCKS)]
    ours, plain = CodecTurns(blocks, turn_blocks), CodecTurns(blocks, 1, element_bytes=1)
    noise = CodecTurns(list(random_bytes(BLOCKS * MIB).reshape(BLOCKS, MIB)), turn_blocks)
    if not noise.is_refused:
        raise KvlaneError("random bytes were compressed: nothing is measured of those that are not")
    zstd, memcpy = ZstdTurns(blocks, turn_blocks), Memcpy(MIB, BLOCKS, BLOCKS)
    sides: dict[str, Measure] = {
        _COMPRESS: ours.encode_gbps,
        _ZSTD_COMPRESS: zstd.compress_gbps,
        _REFUSE: noise.encode_gbps,
        _MEMCPY: lambda: _core_gbps(lambda: memcpy.copy(turn_blocks)),
        _DECOMPRESS: ours.decode_gbps,
        _ZSTD_DECOMPRESS: zstd.decompress_gbps,
    }
    values = alternate(rounds, sides, progress, report)
    report.results.append(
        summarise(f"{NAME}-{_RATIO}", "to 1", [ours.ratio], _RATIO_WITHOUT, [plain.ratio])
    )
    for side, reference in (
        (_COMPRESS, _ZSTD_COMPRESS),
        (_COMPRESS, _MEMCPY),
        (_DECOMPRESS, _ZSTD_DECOMPRESS),
        (_DECOMPRESS, _MEMCPY),
        (_REFUSE, _MEMCPY),
    ):
        name = f"{NAME}-{side}"
        report.results.append(summarise(name, "GB/s", values[side], reference, values[reference]))
    return report
