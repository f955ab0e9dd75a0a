"""What most tests of the HTTP APIs are run against: a server, or what it would hand to its handlers."""

import asyncio
import threading
from contextlib import contextmanager

import pytest

from tests.web.http import serving as http
from tests.web.serving import ECHO, QWEN, SCRIPT, TINY, serving


@pytest.fixture
async def site():
    """A server of HTTP before an engine that does as it is told."""
    async with http.serving() as site:
        yield site


@pytest.fixture
async def served():
    """What a server of a random model serves."""
    async with serving() as served:
        yield served


@pytest.fixture
async def echoing():
    """What a server of the echo model serves."""
    async with serving(ECHO) as served:
        yield served


@pytest.fixture
async def templated():
    """The same, which says what the first message says."""
    async with serving(ECHO, template=SCRIPT) as served:
        yield served


@pytest.fixture
async def scripted():
    """The same, with reasoning and calls told apart from text."""
    async with serving(ECHO, options=QWEN, template=SCRIPT) as served:
        yield served


@pytest.fixture
async def tiny():
    """What a server of the smallest model that speaks serves."""
    async with serving(TINY) as served:
        yield served


@pytest.fixture(scope="module")
def wait():
    """A function that waits for a coroutine, on a loop that runs beside the test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def waiting(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    yield waiting
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@contextmanager
def opened(wait, context):
    """What an asynchronous context gives, for tests that are no coroutines."""
    made = wait(context.__aenter__())
    try:
        yield made
    finally:
        wait(context.__aexit__(None, None, None))
