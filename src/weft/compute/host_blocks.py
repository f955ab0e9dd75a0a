"""`HostBlocks`: copies of KV blocks, and of state slots, for pools in the host's memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class HostBlocks(ABC):
    """Base class that implements `HostBlockCopies` for a runner whose pool is in the host's memory."""

    @abstractmethod
    def _pool_parts(self) -> Sequence[NDArray[Any]]:
        """Returns views of the pool, each [parts, blocks, ...].

        A block has the same index in every part of each view.
        """

    def _slot_parts(self) -> Sequence[NDArray[Any]]:
        """Returns views of state slots in the form of `_pool_parts`; empty if the model stores no states."""
        return ()

    @property
    def state_slots(self) -> "HostBlocks | None":
        parts = self._slot_parts()
        return HostSlots(parts) if parts else None

    def read_block(self, block_id: int) -> Bytes:
        copied = np.empty(sum(block.nbytes for block in self._parts_of(block_id)), np.uint8)
        self.copy_block(block_id, copied)
        return copied

    def copy_block(self, block_id: int, place: Bytes) -> None:
        for block, own in self._with_bytes(block_id, place):
            np.copyto(own, block)

    def write_block(self, block_id: int, data: Bytes) -> None:
        for block, own in self._with_bytes(block_id, data):
            block[...] = own

    def block_rows(self, block_id: int) -> list[memoryview]:
        return [row for parts in self._pool_parts() for row in _rows(parts, block_id)]

    def _parts_of(self, block_id: int) -> Iterator[NDArray[Any]]:
        return (parts[:, block_id] for parts in self._pool_parts() if parts.size)

    def _with_bytes(
        self, block_id: int, data: Bytes
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Yields, for each view, the block's part of the view and the matching part of `data`, in the same shape."""
        start = 0
        for block in self._parts_of(block_id):
            own = data[start : start + block.nbytes]
            yield block, own.view(block.dtype).reshape(block.shape)
            start += block.nbytes


class HostSlots(HostBlocks):
    """Copies of state slots, in the same form as copies of blocks."""

    def __init__(self, parts: Sequence[NDArray[Any]]) -> None:
        self._parts = parts

    def _pool_parts(self) -> Sequence[NDArray[Any]]:
        return self._parts


def _rows(parts: NDArray[Any], block_id: int) -> list[memoryview]:
    if not parts.size:
        return []
    num_parts, num_blocks = parts.shape[:2]
    pool, size = parts.data.cast("B"), parts.nbytes // (num_parts * num_blocks)
    starts = range(block_id * size, parts.nbytes, num_blocks * size)
    return [pool[start : start + size] for start in starts]
