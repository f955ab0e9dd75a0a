"""A model of vLLM's that pools: embeddings beside those of our engine, of the same checkpoint."""

import math
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from tests.compute.encoders import make_model, save
from tests.vllm.engines import engine
from weft.core.config import EngineOptions
from weft.core.errors import BadRequest, ContextLengthExceeded, Unsupported
from weft.core.types import PoolingParams, SamplingParams
from weft.engine.configure import resolve
from weft.engine.front.local_client import LocalClient
from weft.model.open import open_model

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

PROMPT = {"prompt_token_ids": list(range(100, 140))}
EMBED = PoolingParams(task="embed")
HIDDEN = 64


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A BERT of random numbers, with heads of 32 for vLLM's kernels."""
    model = make_model("bert", "Model", hidden_size=HIDDEN, num_attention_heads=2)
    return Path(save(model, tmp_path_factory.mktemp("pooling") / "bert"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(bert):
    """One for all."""
    async with engine(bert, runner="pooling") as client:
        yield client


async def encode(client, params=EMBED, prompt=PROMPT, request_id="r", **options):
    """The one output of one request."""
    async with aclosing(client.encode(prompt, params, request_id, **options)) as outputs:
        (output,) = [output async for output in outputs]
    return output


async def test_embeddings_are_those_of_our_engine(client, bert):
    """Of one vector, and of one for each token, in float32."""
    options = EngineOptions(model=str(bert), runner="pooling")
    found = open_model(str(bert), runner="pooling")
    ours = await LocalClient.start(found, resolve(options, found.card, 1 << 30))
    try:
        pairs = [
            (await encode(client, params), await encode(ours, params))
            for params in (EMBED, PoolingParams(task="token_embed"))
        ]
    finally:
        ours.shutdown()
        await ours.wait_closed()
    assert [mine.shape for mine, _ in pairs] == [(HIDDEN,), (40, HIDDEN)]
    for mine, theirs in pairs:
        assert mine.shape == theirs.shape
        assert mine.data == pytest.approx(theirs.data, abs=1e-4)


async def test_an_embedding_has_length_one_unless_that_is_not_wanted(client):
    """As ours has."""
    unit = await encode(client)
    raw = await encode(client, PoolingParams(task="embed", normalize=False))
    assert math.isclose(sum(x * x for x in unit.data), 1.0, rel_tol=1e-4)
    assert not math.isclose(sum(x * x for x in raw.data), 1.0, rel_tol=1e-2)


async def test_its_tasks_are_told_and_generating_is_none(client):
    """Before vLLM hears of it."""
    assert {"embed", "token_embed"} <= set(await client.get_supported_tasks())
    with pytest.raises(Unsupported, match="generate"):
        await anext(client.generate(PROMPT, SamplingParams(), "g"))


async def test_what_it_cannot_do_is_refused(client):
    """A task that it has not, a prompt beyond the context, a rank."""
    with pytest.raises(BadRequest, match="task"):
        await encode(client, PoolingParams(task="classify"))
    most = client.model_config.max_model_len
    assert len((await encode(client, prompt=[7] * most)).prompt_token_ids) == most
    with pytest.raises(ContextLengthExceeded):
        await encode(client, prompt=[7] * (most + 1))
    assert client.num_active_requests == 0
