"""An engine for tests that are no coroutines."""

import asyncio
import threading

import pytest

from tests.web.serving import serving


@pytest.fixture(scope="module")
def running():
    """What is served, and a function that waits for a coroutine beside it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    context = serving(enable_prefix_caching=False)
    served = wait(context.__aenter__())
    yield served, wait
    wait(context.__aexit__(None, None, None))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
