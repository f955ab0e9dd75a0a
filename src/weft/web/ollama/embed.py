"""/api/embed and the older /api/embeddings: vectors of length 1 of texts."""

import time

from weft.core.errors import BadRequest
from weft.core.values.types import PoolingParams, PoolingRequestOutput
from weft.schema.ollama import (
    OllamaEmbedAnswer,
    OllamaEmbedBody,
    OllamaEmbeddingAnswer,
    OllamaEmbeddingBody,
)
from weft.schema.pooling import EmbeddingBody
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall, naming
from weft.web.ollama.options import check_keep_alive
from weft.web.ollama.stream import ollama_endpoint
from weft.web.pooling.numbers import to_list, write_numbers
from weft.web.pooling.run import pooler_of, read_inputs, run_all

_CUT = -1  # inputs are cut to the length of the context


@ollama_endpoint(
    "POST /api/embed",
    body=OllamaEmbedBody,
    example={"input": "The capital of France"},
    answer=OllamaEmbedAnswer,
)
async def create_embeddings(call: ModelCall) -> Answer:
    """Compute one embedding for each input, in Ollama's words"""
    body: OllamaEmbedBody = call.body
    began_ns = time.perf_counter_ns()
    check_keep_alive(body.keep_alive)
    outputs: list[PoolingRequestOutput] = []
    vectors: list[list[float]] = []
    if body.input:
        cut = None if body.truncate is False else _CUT
        outputs, vectors = await _embed(call, body.input, body.dimensions, cut)
    return OllamaEmbedAnswer(
        model=body.model,
        embeddings=vectors,
        total_duration=time.perf_counter_ns() - began_ns,
        prompt_eval_count=sum(len(output.prompt_token_ids) for output in outputs),
    )


@ollama_endpoint(
    "POST /api/embeddings",
    body=OllamaEmbeddingBody,
    example={"prompt": "The capital of France"},
    answer=OllamaEmbeddingAnswer,
)
async def create_embedding(call: ModelCall) -> Answer:
    """Compute the embedding of one text, in Ollama's older words"""
    body: OllamaEmbeddingBody = call.body
    check_keep_alive(body.keep_alive)
    if not body.prompt:
        raise BadRequest("prompt", "prompt must be a text that is not empty")
    with naming({"input": "prompt"}):
        _, (vector,) = await _embed(call, body.prompt, None, _CUT)
    return OllamaEmbeddingAnswer(embedding=vector)


async def _embed(
    call: ModelCall, texts: str | list[str], dimensions: int | None, cut: int | None
) -> tuple[list[PoolingRequestOutput], list[list[float]]]:
    pooler_of(call.served, "embed")
    body = EmbeddingBody(input=texts if isinstance(texts, str) else [*texts])
    params = PoolingParams(
        task="embed", dimensions=dimensions, normalize=True, truncate_prompt_tokens=cut
    )
    outputs = await run_all(call, body, await read_inputs(call, body), params)
    vectors = await write_numbers(outputs, lambda: [to_list(output.data) for output in outputs])
    return outputs, vectors
