"""A server and its client for tests that are no coroutines."""

import asyncio
import threading

import openai
import pytest

from tests.web.openai.test_fields import ADDS_BOS
from tests.web.responses.serving_responses import QWEN
from tests.web.serving import ECHO, RANDOM, http_serving, serving


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


@pytest.fixture(scope="module")
def echo(wait):
    """What a server of the echo model serves, under two names, with a token before every text."""
    names = ["one", "two"]
    settings = {"options": QWEN, "served_model_name": names, "tokenizer_config": ADDS_BOS}
    engine = serving(ECHO, **settings)
    yield wait(engine.__aenter__())
    wait(engine.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def client(wait):
    """The official client, of a server that runs beside the test."""
    engine = serving(RANDOM, options=QWEN, enable_prefix_caching=False)
    served = wait(engine.__aenter__())
    server = http_serving(served)
    address = wait(server.__aenter__())
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as made:
        yield made
    wait(server.__aexit__(None, None, None))
    wait(engine.__aexit__(None, None, None))
