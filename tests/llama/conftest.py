"""llama.cpp, compiled once."""

import pytest

from benchmarks.peers.environments import LLAMA


@pytest.fixture(scope="session", autouse=True)
def environment():
    """As the comparison of `benchmarks/peers` has it."""
    LLAMA.make()
