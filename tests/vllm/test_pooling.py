"""A model of vLLM's that pools, over both wires: embeddings beside those of our engine, of the same checkpoint."""

import json
import math
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from tests.compute.encoders import make_model, save
from tests.vllm.served import fetched, refused, serving
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ContextLengthExceeded, Unsupported
from weft.core.values.types import PoolingParams, SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.start.configure import resolve
from weft.model.open import open_model
from weft.rpc.client import RpcClient

pytestmark = pytest.mark.vllm

IDS = list(range(100, 140))
EMBED = PoolingParams(task="embed")
HIDDEN = 64


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A BERT of random numbers, with heads of 32 for vLLM's kernels."""
    model = make_model("bert", "Model", hidden_size=HIDDEN, num_attention_heads=2)
    return Path(save(model, tmp_path_factory.mktemp("pooling") / "bert"))


@pytest.fixture(scope="module")
def server(bert):
    """One for all."""
    with serving(bert, "--runner", "pooling") as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(server):
    """Of its gRPC server."""
    client = await RpcClient.connect(server.address)
    yield client
    await client.close()


async def encode(client, params=EMBED, prompt=None):
    """The one output of one request."""
    given = {"prompt_token_ids": IDS if prompt is None else prompt}
    async with aclosing(client.encode(given, params, "r")) as outputs:
        (output,) = [output async for output in outputs]
    return output


def posted(server, path, **body):
    """The first result of a request over HTTP, and its usage."""
    answer = json.loads(fetched(server, path, {"input": IDS, **body}))
    return answer["data"][0], answer["usage"]


@pytest.mark.asyncio(loop_scope="session")
async def test_embeddings_are_those_of_our_engine(server, client, bert):
    """Of one vector over both wires, and of one for each token, in float32."""
    options = EngineOptions(model=str(bert), runner="pooling")
    found = open_model(str(bert), runner="pooling")
    ours = await LocalClient.start(found, resolve(options, found.card, 1 << 30))
    try:
        whole = await encode(ours)
        each = await encode(ours, PoolingParams(task="token_embed"))
    finally:
        ours.shutdown()
        await ours.wait_closed()
    over_grpc = await encode(client)
    over_http, usage = posted(server, "/v1/embeddings")
    assert whole.shape == (HIDDEN,) == over_grpc.shape
    assert over_grpc.data == pytest.approx(whole.data, abs=1e-4)
    assert over_http["embedding"] == pytest.approx(over_grpc.data, abs=1e-6)
    assert usage["prompt_tokens"] == len(IDS)
    tokens, _ = posted(server, "/pooling", task="token_embed")
    assert each.shape == (len(IDS), HIDDEN) == (len(tokens["data"]), len(tokens["data"][0]))
    assert [x for row in tokens["data"] for x in row] == pytest.approx(each.data, abs=1e-4)


def test_an_embedding_has_length_one_unless_that_is_not_wanted(server):
    """As ours has."""
    unit, _ = posted(server, "/v1/embeddings")
    raw, _ = posted(server, "/v1/embeddings", normalize=False)
    assert math.isclose(sum(x * x for x in unit["embedding"]), 1.0, rel_tol=1e-4)
    assert not math.isclose(sum(x * x for x in raw["embedding"]), 1.0, rel_tol=1e-2)


@pytest.mark.asyncio(loop_scope="session")
async def test_generating_is_no_task_of_it(server, client):
    """Before vLLM hears of it, over both wires."""
    with pytest.raises(Unsupported, match="generate"):
        await anext(client.generate({"prompt_token_ids": IDS}, SamplingParams(), "g"))
    code, error = refused(server, "/v1/completions", {"prompt": IDS, "max_tokens": 1})
    assert (code, "generate" in error["message"]) == (400, True)


@pytest.mark.asyncio(loop_scope="session")
async def test_what_it_cannot_do_is_refused(server, client):
    """A task that it has not, and a prompt beyond the context; what fills it is taken."""
    code, error = refused(server, "/pooling", {"input": IDS, "task": "classify"})
    assert (code, "task" in error["message"]) == (400, True)
    most = client.model_config.max_model_len
    assert len((await encode(client, prompt=[7] * most)).data) == HIDDEN
    with pytest.raises(ContextLengthExceeded):
        await encode(client, prompt=[7] * (most + 1))
    code, error = refused(server, "/v1/embeddings", {"input": [7] * (most + 1)})
    assert code == 400
