"""A server and its client for tests that are no coroutines."""

import openai
import pytest

from tests.web.conftest import opened
from tests.web.openai.test_fields import ADDS_BOS
from tests.web.responses.serving_responses import SLOW
from tests.web.serving import ECHO, QWEN, RANDOM, http_serving, serving


@pytest.fixture(scope="module")
def echo(wait):
    """What a server of the echo model serves, under two names, with a token before every text."""
    names = ["one", "two"]
    settings = {"options": QWEN, "served_model_name": names, "post_processor": ADDS_BOS}
    with opened(wait, serving(ECHO, **settings)) as served:
        yield served


@pytest.fixture(scope="module")
def client(wait):
    """The official client, of a server that runs beside the test."""
    engine = serving(RANDOM, options=QWEN, enable_prefix_caching=False)
    with (
        opened(wait, engine) as served,
        opened(wait, http_serving(served)) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


@pytest.fixture
async def slow():
    """What a server serves that takes its time for every token."""
    async with serving(SLOW) as served:
        yield served
