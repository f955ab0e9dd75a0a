"""/v2/embed: vectors of texts in several types."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.config.engine import PoolerConfig
from weft.core.errors import BadRequest
from weft.core.values.types import PoolingRequestOutput
from weft.schema.pooling import EmbeddingBody
from weft.web.cohere.bodies import (
    CohereEmbedAnswer,
    CohereEmbedBody,
    CohereEmbeddings,
    CohereEmbedInput,
    CohereMeta,
    CohereTokens,
)
from weft.web.http.endpoint import Answer, Dialect
from weft.web.inference.call import ModelCall, first_if_blank, model_endpoint, naming
from weft.web.pooling.numbers import NumberFormat, to_list, write_numbers
from weft.web.pooling.pool import embed
from weft.web.pooling.run import pooler_of

_CUT = -1  # inputs are cut to the length of the context
# Names of prompts in models' files, by the name that Cohere's API has for each use.
_PROMPT_NAMES: Mapping[str, tuple[str, ...]] = {
    "search_query": ("search_query", "query"),
    "search_document": ("search_document", "document", "passage"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}


@model_endpoint(
    "POST /v2/embed",
    dialect=Dialect.COHERE,
    to_name=first_if_blank,
    body=CohereEmbedBody,
    example={"texts": ["The capital of France"], "input_type": "search_document"},
    answer=CohereEmbedAnswer,
)
async def create_embeddings(call: ModelCall) -> Answer:
    """Compute one embedding for each input, in Cohere's words"""
    body: CohereEmbedBody = call.body
    types = _types(body)
    texts = _texts(body)
    prefix = prefix_of(pooler_of(call.served, "embed"), body.input_type)
    most = call.served.client.model_config.max_model_len
    cut = _CUT if body.max_tokens is None else min(body.max_tokens, most)
    inputs = EmbeddingBody(
        input=[prefix + text for text in texts],
        dimensions=body.output_dimension,
        truncate_prompt_tokens=None if body.truncate == "NONE" else cut,
        truncation_side="left" if body.truncate == "START" else "right",
        priority=body.priority,
    )
    own = "texts" if body.inputs is None else "inputs"
    names = {
        "input": own,
        "dimensions": "output_dimension",
        "truncate_prompt_tokens": "max_tokens",
    }
    with naming(names):
        outputs = await embed(call, inputs)
    if body.truncate == "NONE":
        _check_lengths(outputs, body.max_tokens)
    made = await write_numbers(outputs, lambda: {kind: _WRITERS[kind](outputs) for kind in types})
    tokens = CohereTokens(input_tokens=sum(len(each.prompt_token_ids) for each in outputs))
    return CohereEmbedAnswer(
        id=f"embd-{call.label}",
        embeddings=CohereEmbeddings(**made),
        texts=texts,
        meta=CohereMeta(billed_units=tokens, tokens=tokens),
    )


def _types(body: CohereEmbedBody) -> Sequence[str]:
    types = body.embedding_types or ["float"]
    for kind in types:
        if kind in ("int8", "uint8"):
            raise BadRequest(
                "embedding_types",
                f"{kind} is not supported: it needs ranges that only Cohere's models have; use binary",
            )
        if kind not in _WRITERS:
            raise BadRequest(
                "embedding_types",
                f"embedding_types must be among {', '.join(_WRITERS)}, got {kind[:40]!a}",
            )
    return types


def _texts(body: CohereEmbedBody) -> list[str]:
    """The inputs; the texts of an input of several parts are joined by line breaks."""
    if body.images is not None:
        raise BadRequest("images", "images are not supported: this server embeds texts")
    if (body.texts is None) == (body.inputs is None):
        raise BadRequest("texts", "give either texts or inputs")
    if body.max_tokens is not None and body.max_tokens < 1:
        raise BadRequest("max_tokens", f"max_tokens must be at least 1, got {body.max_tokens}")
    texts = body.texts if body.inputs is None else list(map(_joined, body.inputs))
    if not texts:
        raise BadRequest("texts", "texts must hold at least one text")
    return texts


def _joined(given: CohereEmbedInput) -> str:
    for part in given.content:
        if part.type != "text" or part.text is None:
            raise BadRequest(
                "inputs", f"inputs may hold parts of type text, got {part.type[:40]!a}"
            )
    return "\n".join(part.text or "" for part in given.content)


def prefix_of(pooler: PoolerConfig, input_type: str | None) -> str:
    """The text that the model's authors put before texts of this use; "" if they prescribe none."""
    if input_type is None:
        return ""
    names = _PROMPT_NAMES.get(input_type, (input_type,))
    name = next((name for name in names if name in pooler.prompts), None)
    if name is None and (pooler.prompts or input_type not in _PROMPT_NAMES):
        allowed = sorted(pooler.prompts) or list(_PROMPT_NAMES)
        raise BadRequest(
            "input_type",
            f"input_type must be one of {', '.join(allowed)} for this model, got {input_type[:40]!a}",
        )
    prompt = "" if name is None else pooler.prompts[name]
    if not prompt.startswith(pooler.prompt):
        raise BadRequest(
            "input_type", f"this model puts {pooler.prompt[:40]!a} before every text; leave it out"
        )
    return prompt.removeprefix(pooler.prompt)


def _check_lengths(outputs: Sequence[PoolingRequestOutput], most: int | None) -> None:
    longest = max(len(output.prompt_token_ids) for output in outputs)
    if most is not None and longest > most:
        raise BadRequest(
            "max_tokens",
            f"a text has {longest} tokens, more than max_tokens ({most}); use truncate",
        )


def _floats(outputs: Sequence[PoolingRequestOutput]) -> list[Any]:
    return [to_list(output.data) for output in outputs]


def _base64(outputs: Sequence[PoolingRequestOutput]) -> list[Any]:
    form = NumberFormat("base64", "float32", is_big_endian=False)
    return [form.to_json(output) for output in outputs]


def _packed(outputs: Sequence[PoolingRequestOutput]) -> list[list[int]]:
    """A bit for each number, 1 from zero on; eight in a byte, the first one highest."""
    vectors = np.array([output.data for output in outputs], np.float32)
    if vectors.shape[1] % 8:
        raise BadRequest(
            "embedding_types",
            f"binary and ubinary need a multiple of 8 dimensions, and these are {vectors.shape[1]}",
        )
    packed: list[list[int]] = np.packbits(vectors >= 0, axis=1).tolist()
    return packed


def _signed(outputs: Sequence[PoolingRequestOutput]) -> list[list[int]]:
    return [[byte - 128 for byte in row] for row in _packed(outputs)]


_WRITERS: Mapping[str, Callable[[Sequence[PoolingRequestOutput]], list[Any]]] = {
    "float": _floats,
    "binary": _signed,
    "ubinary": _packed,
    "base64": _base64,
}
