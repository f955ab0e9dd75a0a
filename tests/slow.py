"""Which cases of a test are run each time."""

from collections.abc import Collection, Iterable

import pytest


def slow_but(fast: Collection[object], cases: Iterable[object]) -> list:
    """All but these are marked as slow."""
    return [pytest.param(c, marks=() if c in fast else pytest.mark.slow) for c in cases]
