"""The card's memory: what is refused where it ends, and how it is given back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from weft.compute.gpu.card import is_interpreted


@contextmanager
def refusing_memory() -> Iterator[None]:
    """Raise a `MemoryError` for what does not fit the card, as for what does not fit the host."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error


def release_memory() -> None:
    """Give the card what torch keeps of it and nobody uses."""
    if not is_interpreted():
        torch.cuda.empty_cache()
