"""An engine for tests that are no coroutines."""

import pytest

from tests.web.conftest import opened
from tests.web.serving import serving


@pytest.fixture(scope="module")
def running(wait):
    """What is served, and a function that waits for a coroutine beside it."""
    with opened(wait, serving(enable_prefix_caching=False)) as served:
        yield served, wait
