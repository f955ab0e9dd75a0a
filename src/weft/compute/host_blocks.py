"""`HostBlocks`: the blocks of a KV pool in the host's memory, copied out and back in."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class HostBlocks(ABC):
    """Makes a runner `BlockCopies` that can show its pool."""

    @abstractmethod
    def _pool_parts(self) -> NDArray[Any]:
        """A view of the pool, [parts, blocks, ...]: a block is the same place of every part."""

    def read_block(self, block_id: int) -> Bytes:
        """See `BlockCopies`."""
        copied = np.ascontiguousarray(self._pool_parts()[:, block_id])
        return copied.reshape(-1).view(np.uint8)

    def copy_block(self, block_id: int, place: Bytes) -> None:
        """See `BlockCopies`."""
        block = self._pool_parts()[:, block_id]
        np.copyto(place.view(block.dtype).reshape(block.shape), block)

    def write_block(self, block_id: int, data: Bytes) -> None:
        """See `BlockCopies`."""
        place = self._pool_parts()[:, block_id]
        place[...] = data.view(place.dtype).reshape(place.shape)

    def block_rows(self, block_id: int) -> list[memoryview]:
        """See `BlockCopies`."""
        parts = self._pool_parts()
        num_parts, num_blocks = parts.shape[:2]
        pool, size = parts.data.cast("B"), parts.nbytes // (num_parts * num_blocks)
        starts = range(block_id * size, parts.nbytes, num_blocks * size)
        return [pool[start : start + size] for start in starts]
