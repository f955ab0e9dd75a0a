"""The card's memory: an error when the memory is full, and releasing unused memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from weft.compute.gpu.card import is_interpreted


@contextmanager
def refusing_memory() -> Iterator[None]:
    """Context manager that raises `MemoryError` when the card's memory is full, as is usual for the host's memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error


def release_memory() -> None:
    """Returns memory that torch caches but does not use to the card."""
    if not is_interpreted():
        torch.cuda.empty_cache()
