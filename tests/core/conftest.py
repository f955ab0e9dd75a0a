"""What tests of the core share."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """The loggers as they were, afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("weft")
    before = (root.handlers[:], root.level, ours.level, logging.raiseExceptions)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    logging.raiseExceptions = before[3]
