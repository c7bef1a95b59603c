"""Blocks compressed and back: byte shuffle, then zstd; what does not shrink stays as it is."""

from __future__ import annotations

import numpy as np

from dpu_agent.segments.direct_file import memory_at
from dpu_agent.segments.layout import PAGE_BYTES, padded
from dpu_agent.tiers._shuffle_kernels import shuffle, unshuffle
from dpu_agent.tiers.encoded_block import HEADER_BYTES, BlockHeader
from kvlane.errors import ConfigError, StorageFormatError
from kvlane.rawmem import crc32

_LEAST_SAVED = 16
"""A block is compressed only if that saves one byte in so many, and a page."""
_PIECES, _PIECE_BYTES = 4, 16 << 10
"""What of a long block is tried first: pieces from all over it, as its end may be zeros."""
_LEAST_SAVED_OF_SAMPLE = 64
_MIN_MATCH = 7
"""Shorter matches are chance in shuffled numbers: looking for them halves the speed, and using
them makes the frame longer."""
_FAST_LEVEL, _FAST_HASH_LOG = 1, 10
"""A small table of matches at the fastest level, for the same reason."""


def require_zstandard(why: str) -> None:
    """``ConfigError`` where the library is not installed."""
    try:
        import zstandard  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{why}, and zstandard is not installed; pip install 'kvlane[compression]'"
        ) from error


class BlockCodec:
    """For one thread at a time: it has memory of its own, for a block."""

    def __init__(self, level: int, element_bytes: int, block_bytes: int) -> None:
        """``block_bytes``: of the longest block. The others matter for ``encode`` alone."""
        import zstandard

        self._error = zstandard.ZstdError
        self._frame_parameters = zstandard.get_frame_parameters
        self._element_bytes = element_bytes
        from_level = zstandard.ZstdCompressionParameters.from_level
        parameters = (
            from_level(
                level, source_size=block_bytes, min_match=_MIN_MATCH, hash_log=_FAST_HASH_LOG
            )
            if level == _FAST_LEVEL
            else from_level(level, source_size=block_bytes, min_match=_MIN_MATCH)
        )
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)
        window_bytes = 1 << max(block_bytes - 1, 1 << 10).bit_length()
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=window_bytes)
        self._scratch = np.empty(max(block_bytes, _PIECES * _PIECE_BYTES), np.uint8)
        self._scratch_address = int(self._scratch.ctypes.data)

    def encode(self, address: int, length: int, checksum: int, target: memoryview) -> int:
        """Compress a block to the begin of ``target``, which has room for the block as it is; how
        many bytes that took, 0 where it saves too little."""
        if length <= PAGE_BYTES or not self._looks_compressible(address, length):
            return 0
        shuffle(self._scratch_address, address, length, self._element_bytes)
        frame = self._compressor.compress(self._scratch[:length].data)
        stored = HEADER_BYTES + len(frame)
        if padded(stored) + PAGE_BYTES > padded(length) or stored > length - length // _LEAST_SAVED:
            return 0
        target[:HEADER_BYTES] = BlockHeader(length, checksum, self._element_bytes).emit()
        target[HEADER_BYTES:stored] = frame
        return stored

    def _looks_compressible(self, address: int, length: int) -> bool:
        sample = _PIECES * _PIECE_BYTES
        if length < 2 * sample:
            return True
        for number in range(_PIECES):
            # Evenly over the block, the last at its end; whole elements.
            at = (length - _PIECE_BYTES) * number // (_PIECES - 1) & -PAGE_BYTES
            put = self._scratch_address + number * _PIECE_BYTES
            shuffle(put, address + at, _PIECE_BYTES, self._element_bytes)
        frame = self._compressor.compress(self._scratch[:sample].data)
        return len(frame) < sample - sample // _LEAST_SAVED_OF_SAMPLE

    def decode(self, address: int, stored: int, length: int) -> bool:
        """Put a block of ``length`` bytes where its ``stored`` compressed ones are; False where
        they are not such a block, and then what is there is not to be used.

        Nothing is written beyond ``length``, whatever the bytes say.
        """
        if stored <= HEADER_BYTES:
            return False
        try:
            header = BlockHeader.parse(bytes(memory_at(address, stored)[:HEADER_BYTES]))
            if header.length != length or length > len(self._scratch):
                return False
            frame = memory_at(address + HEADER_BYTES, stored - HEADER_BYTES)
            if self._frame_parameters(frame).content_size != length:
                return False
            with self._decompressor.stream_reader(frame) as reader:
                if reader.readinto(self._scratch[:length].data) != length:
                    return False
        except (self._error, StorageFormatError):
            return False
        unshuffle(address, self._scratch_address, length, header.element_bytes)
        return crc32(0, address, length) == header.checksum
