"""Small arrays on their way to the card and back, which the host does not wait for until it reads them."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from weft.compute.gpu import launches
from weft.compute.gpu.card import is_interpreted


def to_card(values: NDArray[Any]) -> torch.Tensor:
    """A copy on the card, in the order of what is launched."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if is_interpreted():
        return tensor.clone()
    return tensor.pin_memory().to(launches.device(), non_blocking=True)


@dataclass(frozen=True, slots=True)
class ToHost:
    """A tensor on its way to the host."""

    host: torch.Tensor
    copied: Any  # an event; None where there is no card

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """Begin to copy it."""
        if is_interpreted():
            return cls(tensor.clone(), None)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        return cls(host, copied)

    def wait(self) -> NDArray[Any]:
        """Waits for the copy and returns its numbers."""
        if self.copied is not None:
            self.copied.synchronize()
        values: NDArray[Any] = self.host.numpy()
        return values
