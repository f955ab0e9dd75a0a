"""/pooling, /classify, /score and /rerank over HTTP."""

import base64

import numpy as np
import pytest
import pytest_asyncio

from tests.compute.encoders import make_model
from tests.model.pooling_files import change_config, write_modules, write_tokenizer
from tests.web.pooling.serving import http, post, refusal

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),
]

QUERY, DOCUMENTS = "the cat sat", ["a dog ran far", "the cat", "river boat moon", "sun"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedder(tmp_path_factory):
    """A small BERT with mean pooling, whose embeddings may be cut."""
    directory = tmp_path_factory.mktemp("embedder")
    make_model("bert", "Model").save_pretrained(directory)
    write_modules(write_tokenizer(directory), 48)
    (directory / "special_tokens_map.json").write_text('{"pad_token": "[PAD]"}')
    change_config(directory, matryoshka_dimensions=[8, 48])
    async with http(str(directory)) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def classifier(tmp_path_factory):
    """A small BERT with three classes."""
    directory = tmp_path_factory.mktemp("classifier")
    model = make_model("bert", "ForSequenceClassification", num_labels=3)
    model.config.id2label = {0: "good", 1: "bad", 2: "ugly"}
    model.save_pretrained(directory)
    async with http(str(write_tokenizer(directory))) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cross_encoder(tmp_path_factory):
    """A small BERT with one label."""
    directory = tmp_path_factory.mktemp("cross")
    make_model("bert", "ForSequenceClassification", num_labels=1).save_pretrained(directory)
    async with http(str(write_tokenizer(directory))) as client:
        yield client


async def scores(client, **body):
    answer = await post(client, "/score", **body)
    return [item["score"] for item in answer["data"]]


async def test_every_class_has_its_score(classifier):
    """The label is that of the best; the scores add up to 1."""
    answer = await post(classifier, "/classify", input=DOCUMENTS)
    assert answer["id"].startswith("classify-")
    for item in answer["data"]:
        assert item["num_classes"] == len(item["probs"]) == 3
        assert abs(sum(item["probs"]) - 1) < 1e-5
        assert item["label"] == ["good", "bad", "ugly"][int(np.argmax(item["probs"]))]
    assert len({item["probs"][0] for item in answer["data"]}) == 4
    (raw,) = (await post(classifier, "/classify", input="sun", use_activation=False))["data"]
    assert np.allclose(
        np.exp(raw["probs"]) / np.exp(raw["probs"]).sum(), answer["data"][3]["probs"]
    )
    assert (await post(classifier, "/classify", input=[]))["data"] == []
    assert await refusal(classifier, "/classify", input="") == (
        "input",
        "Input or messages must be provided",
    )


async def test_pooling_gives_every_token_its_vector(embedder):
    """By the task's name; an embedder without a task gives each input one."""
    each = {"task": "token_embed"}
    answer = await post(embedder, "/pooling", input=["the cat", "sun"], **each)
    assert answer["id"].startswith("pool-")
    assert [np.shape(item["data"]) for item in answer["data"]] == [(4, 48), (3, 48)]
    fields = {"encoding_format": "base64", **each}
    (text,) = (await post(embedder, "/pooling", input="sun", **fields))["data"]
    numbers = np.frombuffer(base64.b64decode(text["data"]), "<f4").reshape(3, 48)
    assert numbers.tolist() == answer["data"][1]["data"]
    (one,) = (await post(embedder, "/pooling", input="sun", task="embed"))["data"]
    (untold,) = (await post(embedder, "/pooling", input="sun"))["data"]
    (same,) = (await post(embedder, "/v1/embeddings", input="sun"))["data"]
    assert one["data"] == untold["data"] == same["embedding"]


async def test_pooling_refuses_by_name(embedder, classifier):
    """Dimensions are for embeddings, and tasks are named."""
    assert (await refusal(embedder, "/pooling", input="sun", dimensions=8))[0] == "dimensions"
    field, message = await refusal(embedder, "/pooling", input="sun", task="classify")
    assert (field, "embed, token_embed" in message) == ("task", True)
    assert (await refusal(classifier, "/pooling", input="sun"))[0] == "task"
    assert (await refusal(classifier, "/v1/embeddings", input="sun"))[0] == "model"
    assert (await refusal(embedder, "/classify", input="sun"))[0] == "model"


async def test_dimensions_cut_and_normalise_again(embedder):
    """The first numbers of the vector, brought back to length 1."""
    (whole,) = (await post(embedder, "/v1/embeddings", input="sun"))["data"]
    (cut,) = (await post(embedder, "/v1/embeddings", input="sun", dimensions=8))["data"]
    expected = np.array(whole["embedding"][:8])
    assert np.allclose(cut["embedding"], expected / np.linalg.norm(expected), atol=1e-6)
    assert (await refusal(embedder, "/v1/embeddings", input="sun", dimensions=9))[0] == "dimensions"


async def test_scores_are_cosines_of_embeddings(embedder):
    """One with one, one with each, each with its counterpart; every text is embedded once."""
    answer = await post(embedder, "/v1/embeddings", input=[QUERY, *DOCUMENTS])
    rows = np.array([item["embedding"] for item in answer["data"]])
    expected = rows[1:] @ rows[0]
    assert np.allclose(await scores(embedder, text_1=QUERY, text_2=DOCUMENTS), expected, atol=1e-6)
    assert np.allclose(
        await scores(embedder, queries=QUERY, documents=DOCUMENTS[0]), expected[:1], atol=1e-6
    )
    assert np.allclose(
        await scores(embedder, text_1=[QUERY] * 4, text_2=DOCUMENTS), expected, atol=1e-6
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/score", {"text_1": QUERY, "text_2": [QUERY, "sun"]}),
        ("/rerank", {"query": QUERY, "documents": [QUERY, "sun"]}),
    ],
)
async def test_usage_counts_both_texts_of_each_pair(embedder, path, body):
    """As the reference does: the query again with each document, and one token of padding between them."""
    usage = (await post(embedder, path, **body))["usage"]
    assert usage["total_tokens"] == (5 + 1 + 5) + (5 + 1 + 3)


async def test_a_cross_encoder_scores_pairs(cross_encoder):
    """Both texts count, and so does their order; between 0 and 1 unless requested as they are."""
    plain = await scores(cross_encoder, text_1=QUERY, text_2=DOCUMENTS)
    raw = await scores(cross_encoder, text_1=QUERY, text_2=DOCUMENTS, use_activation=False)
    assert np.allclose(1 / (1 + np.exp(-np.array(raw))), plain, atol=1e-6)
    assert len(set(plain)) == 4
    assert await scores(cross_encoder, text_1=DOCUMENTS[0], text_2=QUERY) != plain[:1]
    answer = await post(cross_encoder, "/score", text_1=QUERY, text_2="sun")
    assert answer["usage"]["prompt_tokens"] == 7


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_are_ranked(cross_encoder, path):
    """The best first, each with its place in the request and its text."""
    expected = await scores(cross_encoder, text_1=QUERY, text_2=DOCUMENTS)
    answer = await post(cross_encoder, path, query=QUERY, documents=DOCUMENTS)
    results = answer["results"]
    assert [r["index"] for r in results] == np.argsort(-np.array(expected)).tolist()
    assert [r["relevance_score"] for r in results] == sorted(expected, reverse=True)
    assert all(r["document"]["text"] == DOCUMENTS[r["index"]] for r in results)


async def test_a_ranking_may_be_cut_short(embedder):
    """top_n, documents as objects, and without their texts."""
    documents = [{"text": text} for text in DOCUMENTS]
    whole = await post(embedder, "/rerank", query=QUERY, documents=documents, top_n=0)
    cut = await post(
        embedder, "/rerank", query=QUERY, documents=documents, top_n=2, return_documents=False
    )
    assert [r["index"] for r in cut["results"]] == [r["index"] for r in whole["results"]][:2]
    assert all("document" not in r for r in cut["results"])


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/score", {"text_1": "a"}, "text_2"),
        ("/score", {}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ("/score", {"text_1": "a", "text_2": "b", "queries": "c"}, "text_1"),
        ("/score", {"text_1": "a", "text_2": "b", "use_activation": True}, "use_activation"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/rerank", {"documents": ["b"]}, "query"),
        ("/rerank", {"query": "a", "documents": ["b"] * 2049}, "documents"),
        (
            "/rerank",
            {"query": "a", "documents": ["b"], "max_tokens_per_doc": 4},
            "max_tokens_per_doc",
        ),
    ],
)
async def test_what_cannot_be_scored_is_refused_by_name(embedder, path, body, field):
    """400 with the field at fault."""
    assert (await refusal(embedder, path, **body))[0] == field


async def test_classes_are_no_scores(classifier):
    """A model with several labels has no one score for a pair."""
    field, message = await refusal(classifier, "/score", text_1="a", text_2="b")
    assert (field, "3 labels" in message) == ("model", True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/pooling", {"input": "a"}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
    ],
)
async def test_the_rank_header_is_followed(embedder, path, body):
    """As by the endpoints that generate: one engine has rank 0, and a rank that is not there is refused."""
    await post(embedder, path, headers={"x-data-parallel-rank": "0"}, **body)
    refused = await post(embedder, path, 400, {"x-data-parallel-rank": "7"}, **body)
    assert refused["error"]["param"] == "data_parallel_rank"


async def capabilities(client) -> list[str]:
    """Returns what /api/show says that the model can do."""
    (card,) = (await client.get("/v1/models")).json()["data"]
    return (await client.post("/api/show", json={"model": card["id"]})).json()["capabilities"]


async def test_models_say_what_they_are_for(embedder, classifier, cross_encoder):
    """A model with one label ranks; one with several classifies; none of them completes texts."""
    assert await capabilities(embedder) == ["embedding"]
    assert await capabilities(classifier) == ["classification"]
    assert await capabilities(cross_encoder) == ["rerank"]
