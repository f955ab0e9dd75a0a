"""The card's memory: errors when it is full, and releasing it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from weft.compute.gpu.card import is_interpreted


@contextmanager
def refusing_memory() -> Iterator[None]:
    """Raises `MemoryError` when the card's memory is full, as for the host's memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error


def release_memory() -> None:
    """Returns memory that torch caches without use to the card."""
    if not is_interpreted():
        torch.cuda.empty_cache()
