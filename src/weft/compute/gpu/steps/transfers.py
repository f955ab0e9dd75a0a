"""Asynchronous copies of small arrays to the card and back; the host waits only when it reads the values."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from weft.compute.gpu import launches
from weft.compute.gpu.card import is_interpreted


def to_card(values: NDArray[Any]) -> torch.Tensor:
    """Returns a copy of the array on the card, copied in stream order."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if is_interpreted():
        return tensor.clone()
    return tensor.pin_memory().to(launches.device(), non_blocking=True)


@dataclass(frozen=True, slots=True)
class ToHost:
    """A tensor that is being copied to the host."""

    host: torch.Tensor
    copied: Any  # event after the copy; None without a card

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """Starts the copy of a tensor to the host."""
        if is_interpreted():
            return cls(tensor.clone(), None)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        return cls(host, copied)

    def wait(self) -> NDArray[Any]:
        """Waits for the copy and returns its values."""
        if self.copied is not None:
            self.copied.synchronize()
        values: NDArray[Any] = self.host.numpy()
        return values
