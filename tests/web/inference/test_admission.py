"""Whether there is a place is asked before a prompt is cut into tokens, by every API."""

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.web.serving import http_serving, serving

TOO_LONG = "word " * 400  # which only who has cut it into tokens knows
MESSAGES = {"messages": [{"role": "user", "content": TOO_LONG}], "max_tokens": 4, "model": None}
POOLING = {"runner": "pooling"}


@pytest.mark.parametrize(
    ("path", "body", "settings"),
    [
        ("/v1/completions", {"prompt": TOO_LONG}, {}),
        ("/v1/completions", {"prompt": ["a", TOO_LONG]}, {}),
        ("/v1/chat/completions", MESSAGES, {}),
        ("/generate", {"prompt": TOO_LONG}, {}),
        ("/inference/v1/generate", {"token_ids": [5] * 400, "sampling_params": {}}, {}),
        ("/v1/responses", {"input": TOO_LONG}, {}),
        ("/v1/embeddings", {"input": TOO_LONG}, POOLING),
        ("/pooling", {"input": TOO_LONG}, POOLING),
    ],
)
async def test_a_full_queue_refuses_before_anything_is_done_for_the_prompt(path, body, settings):
    """A prompt that could not be taken anyway is not cut into tokens to find that out."""
    room = {"max_model_len": 64, "max_num_queued_reqs": 1}
    async with (
        serving(**room, **settings) as served,
        http_serving(served) as base,
        httpx2.AsyncClient(base_url=base, timeout=PATIENCE_S) as client,
    ):
        with served.client.preparing(1):
            full = await client.post(path, json=body)
        free = await client.post(path, json=body)
    assert full.status_code == 429, full.text
    assert free.status_code in (400, 429), free.text
