"""`Inputs`: copies the arrays of a step to the card, in one asynchronous copy."""

import torch

from weft.compute.gpu import launches
from weft.compute.gpu.card import is_interpreted
from weft.compute.gpu.steps.step import Layout, StepArrays, StepShape, pack
from weft.compute.protocols.runner import Batch

_NUM_HOST_BUFFERS = 3  # maximum number of steps whose arrays are being copied


class Inputs:
    """A buffer of `size` numbers on the card, whose address graphs contain, and buffers in pinned host memory."""

    def __init__(self, size: int) -> None:
        self._size = size
        is_pinned = not is_interpreted()
        self._host = [
            torch.zeros(size, dtype=torch.int32, pin_memory=is_pinned)
            for _ in range(_NUM_HOST_BUFFERS)
        ]
        self._copied = [torch.cuda.Event() if is_pinned else None for _ in self._host]
        self._on_card = torch.zeros(size, dtype=torch.int32, device=launches.device())
        self._turn = 0
        self._arrays: dict[StepShape, StepArrays] = {}

    def has_room(self, size: int) -> bool:
        """True if the buffer is large enough for a step of this many numbers."""
        return size <= self._size

    def send(self, shape: StepShape, batch: Batch, layout: Layout, spare_slot: int) -> StepArrays:
        """Copies the arrays of a batch to the card, in stream order, and returns them."""
        self._turn = (self._turn + 1) % _NUM_HOST_BUFFERS
        host, copied = self._host[self._turn], self._copied[self._turn]
        if copied is not None:
            copied.synchronize()  # returns at once, unless three steps are in flight
        end = pack(host.numpy(), shape, batch, layout, spare_slot)
        self._on_card[:end].copy_(host[:end], non_blocking=True)
        if copied is not None:
            copied.record()
        if shape not in self._arrays:
            self._arrays[shape] = StepArrays.of(shape, self._on_card)
        return self._arrays[shape]
