"""/v1/embeddings over HTTP."""

import base64
import json

import numpy as np
import openai
import pytest
import pytest_asyncio

from tests.web.pooling.serving import RANDOM, http, post, refusal
from weft.core.config.pooler_options import PoolerOptions

PATH = "/v1/embeddings"
LONG = [10 + i % 300 for i in range(150)]  # beyond the 64 tokens of the context


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client():
    async with http() as started:
        yield started


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def vectors(client, given, **fields):
    answer = await post(client, PATH, input=given, **fields)
    return [item["embedding"] for item in answer["data"]]


async def test_an_empty_name_is_the_model_that_is_served(client):
    """Clients of embeddings write one where they know no name; a stranger's name is not found."""
    assert (await post(client, PATH, input="hello", model=""))["model"] == RANDOM
    await post(client, PATH, status=404, input="hello", model="stranger")


async def test_every_input_has_its_embedding_in_order(client):
    """Texts, ids, and lists of ids; usage counts all their tokens."""
    answer = await post(client, PATH, input=["hello", "more words"], model=RANDOM)
    assert (answer["object"], answer["model"]) == ("list", RANDOM)
    assert answer["id"].startswith("embd-")
    assert [(item["index"], item["object"]) for item in answer["data"]] == [
        (0, "embedding"),
        (1, "embedding"),
    ]
    assert answer["usage"] == {"prompt_tokens": 15, "total_tokens": 15, "completion_tokens": 0}
    (alone,) = await vectors(client, "hello")
    assert answer["data"][0]["embedding"] == alone
    ids = list(b"hello")
    assert await vectors(client, ids) == await vectors(client, [ids]) == [alone]


async def test_base64_holds_the_same_numbers(client):
    """float32, little endian, as OpenAI's clients read it; other types and orders on request."""
    (plain,) = await vectors(client, "hello")
    (text,) = await vectors(client, "hello", encoding_format="base64")
    assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == plain
    (half,) = await vectors(
        client, "hello", encoding_format="base64", embed_dtype="float16", endianness="big"
    )
    assert np.frombuffer(base64.b64decode(half), ">f2").tolist() == np.float16(plain).tolist()
    (brain,) = await vectors(client, "hello", encoding_format="base64", embed_dtype="bfloat16")
    widened = (np.frombuffer(base64.b64decode(brain), "<u2").astype(np.uint32) << 16).view("f4")
    assert np.abs(widened - plain).max() <= 2**-8


async def test_bytes_are_the_body_itself(client):
    """`bytes` says around them, in a header, what JSON would; `bytes_only` nothing."""
    plain = await vectors(client, ["hello", "you"])
    body = {"input": ["hello", "you"], "encoding_format": "bytes"}
    answer = await client.post(PATH, json=body)
    metadata = json.loads(answer.headers["metadata"])
    assert answer.headers["content-type"] == "application/octet-stream"
    assert np.frombuffer(answer.content, "<f4").reshape(2, 32).tolist() == plain
    assert [(i["start"], i["end"], i["shape"]) for i in metadata["data"]] == [
        (0, 128, [32]),
        (128, 256, [32]),
    ]
    assert metadata["usage"]["total_tokens"] == 8
    only = await client.post(PATH, json={**body, "encoding_format": "bytes_only"})
    assert (only.content, "metadata" in only.headers) == (answer.content, False)
    many = ["x"] * 500
    assert (await refusal(client, PATH, input=many, encoding_format="bytes"))[
        0
    ] == "encoding_format"


async def test_the_official_client_gets_its_vectors(client):
    """It requests base64 by default, and decodes it."""
    async with openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="none") as official:
        answer = await official.embeddings.create(model=RANDOM, input=["hello", "you"])
        plain = await official.embeddings.create(
            model=RANDOM, input=["hello", "you"], encoding_format="float"
        )
    assert [item.embedding for item in answer.data] == await vectors(client, ["hello", "you"])
    assert [item.embedding for item in plain.data] == [item.embedding for item in answer.data]
    assert answer.usage.total_tokens == 8


async def test_a_conversation_is_one_input(client):
    """Rendered by the model's template, without a prompt for an answer unless requested."""
    messages = [{"role": "user", "content": "hello"}]
    plain = await post(client, PATH, messages=messages)
    prompted = await post(client, PATH, messages=messages, add_generation_prompt=True)
    assert len(plain["data"]) == 1
    assert plain["usage"]["prompt_tokens"] < prompted["usage"]["prompt_tokens"]


async def test_vectors_may_keep_their_length(client):
    """normalize false leaves them as the model makes them."""
    (plain,) = await vectors(client, "hello")
    (raw,) = await vectors(client, "hello", normalize=False)
    assert np.allclose(np.array(raw) / np.linalg.norm(raw), plain, atol=1e-6)
    assert abs(np.linalg.norm(raw) - 1) > 0.1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({}, "input"),
        ({"input": ["x", 3]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": "x", "messages": []}, "messages"),
        ({"input": [400]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": LONG}, "input"),
        ({"input": "x", "dimensions": 8}, "dimensions"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "endianness": "big"}, "endianness"),
        ({"input": "x", "truncate_prompt_tokens": 65}, "truncate_prompt_tokens"),
        ({"input": "x", "priority": 3}, "priority"),
        ({"input": "x", "chat_template": "x"}, "chat_template"),
        ({"input": "x", "truncation_side": "up"}, "truncation_side"),
    ],
)
async def test_what_cannot_be_embedded_is_refused_by_name(client, body, field):
    """400 with the field at fault; the next request is answered."""
    assert (await refusal(client, PATH, **body))[0] == field
    assert await vectors(client, "hello")


async def test_the_models_own_length_may_be_named(client):
    """A client that always names the length asks for nothing else."""
    (plain,) = await vectors(client, "hello")
    (named,) = await vectors(client, "hello", dimensions=len(plain))
    assert named == plain


async def test_one_bad_input_ends_the_whole_request(client):
    """No half answers."""
    field, message = await refusal(client, PATH, input=[[5], LONG, [6]])
    assert field == "input"
    assert "maximum context length is 64 tokens" in message


async def test_an_unknown_model_is_not_found(client):
    """As everywhere."""
    answer = await post(client, PATH, status=404, input="x", model="other")
    assert "other" in answer["error"]["message"]


async def test_a_model_that_generates_has_no_embeddings():
    """Row 67: 400, and the model goes on generating."""
    async with http(runner="generate") as client:
        for path in (PATH, "/pooling", "/classify"):
            assert (await refusal(client, path, input="x"))[0] == "model"
        assert (await refusal(client, "/score", text_1="x", text_2="y"))[0] == "model"
        answer = await post(client, "/v1/completions", prompt="x", max_tokens=2)
        assert answer["usage"]["completion_tokens"] == 2


async def test_a_model_that_pools_does_not_generate(client):
    """Told so, by name."""
    answer = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
    assert answer.status_code == 400
    assert "generate is not supported by this model" in answer.json()["error"]["message"]


async def test_long_texts_are_averaged_piece_by_piece():
    """Each piece weighs as many tokens as it has; the mean of normal vectors is normal again."""
    chunked = PoolerOptions(enable_chunked_processing=True, max_embed_len=200)
    async with http(pooler_config=chunked) as client:
        pieces = await vectors(client, [LONG[:64], LONG[64:128], LONG[128:]])
        answer = await post(client, PATH, input=[LONG, [5, 6]])
        short = await vectors(client, [5, 6])
        too_long = await refusal(client, PATH, input=[5] * 201)
        truncated = await post(client, PATH, input=LONG, truncate_prompt_tokens=64)
        (raw,) = await vectors(client, LONG, normalize=False)
        raw_pieces = await vectors(client, [LONG[:64], LONG[64:128], LONG[128:]], normalize=False)

    weights = np.array([64, 64, 22]) / 150
    mean = weights @ np.array(pieces)
    embedding = answer["data"][0]["embedding"]
    assert np.allclose(embedding, mean / np.linalg.norm(mean), atol=1e-6)
    assert np.allclose(raw, weights @ np.array(raw_pieces), atol=1e-5)
    assert answer["data"][1]["embedding"] == short[0]
    assert answer["usage"]["prompt_tokens"] == 152
    assert too_long == (
        "input",
        "this server embeds texts of at most 200 tokens, and this one has 201",
    )
    assert truncated["data"][0]["embedding"] == pieces[0]
