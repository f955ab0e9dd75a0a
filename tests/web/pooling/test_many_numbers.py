"""Answers with many numbers hold nobody up."""

import msgspec
import pytest

from tests.doubles.loop_probe import check_pauses
from tests.web.serving import call_of, serving
from weft.web.pooling import ENDPOINTS

_BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
# A million numbers: as many as in a thousand embeddings of the usual length.
WIDE = "embedded:random?layers=1&hidden=4096&heads=2&kv_heads=1&head_dim=16&intermediate=16&vocab=300&max_len=16"
TEXTS = [f"{number:03}" for number in range(256)]
BODIES = {
    "floats": ("/v1/embeddings", {"input": TEXTS}),
    "score": ("/score", {"queries": "000", "documents": TEXTS}),
}


@pytest.mark.parametrize("kind", BODIES)
async def test_many_numbers_are_written_while_others_are_served(kind):
    """To write them takes a tenth of a second, to compare them more."""
    path, body = BODIES[kind]

    async def ask() -> object:
        answer = await _BY_PATH[path].handler(call_of(_BY_PATH, served, path, body))
        return msgspec.json.encode(answer)

    async with serving(WIDE, max_model_len=None, runner="pooling") as served:
        assert await check_pauses(ask)
