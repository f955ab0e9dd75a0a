"""Models that pool behind a real HTTP server on a free port, and calls of it."""

from contextlib import asynccontextmanager

import httpx2

from tests.busy import PATIENCE_S
from tests.web.serving import http_serving, serving

RANDOM = "embedded:random?layers=1&hidden=32&heads=2&kv_heads=1&head_dim=16&vocab=400&max_len=64"


@asynccontextmanager
async def http(model: str = RANDOM, **settings):
    """A client of a server of that model."""
    settings = {"max_model_len": None, "runner": "pooling", **settings}
    async with (
        serving(model, **settings) as served,
        http_serving(served) as base,
        httpx2.AsyncClient(base_url=base, timeout=PATIENCE_S) as client,
    ):
        yield client


async def post(client, path: str, status: int = 200, headers=None, **body) -> dict:
    """The JSON answer."""
    answer = await client.post(path, json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


async def refusal(client, path: str, **body) -> tuple[str | None, str]:
    """Which field a refused call names, and why."""
    error = (await post(client, path, status=400, **body))["error"]
    return error["param"], error["message"]
