"""/v1/embeddings: one vector per input; /pooling: the output of any pooling task; /classify: the class."""

from dataclasses import asdict
from functools import partial

from weft.core.errors import BadRequest
from weft.core.values.types import PoolingParams, PoolingRequestOutput
from weft.schema.pooling import (
    Classification,
    ClassifyAnswer,
    ClassifyBody,
    Embedding,
    EmbeddingAnswer,
    EmbeddingBody,
    Pooled,
    PoolingAnswer,
    PoolingBody,
)
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall, first_if_blank, model_endpoint
from weft.web.pooling.long_texts import embed_long, is_cutting
from weft.web.pooling.numbers import number_format, raw_answer, to_list, write_numbers
from weft.web.pooling.run import pooler_of, read_inputs, run_all, usage_of

pooling_endpoint = partial(model_endpoint, to_name=first_if_blank)
_EXAMPLE = {"input": "The capital of France"}


@pooling_endpoint(
    "POST /v1/embeddings", body=EmbeddingBody, example=_EXAMPLE, answer=EmbeddingAnswer
)
async def create_embeddings(call: ModelCall) -> Answer:
    """Compute one embedding for each input"""
    body: EmbeddingBody = call.body
    head = call.heading("embd")
    form = number_format(body)
    outputs = await embed(call, body)
    if form.is_raw:
        return await write_numbers(outputs, partial(raw_answer, head, form, outputs))
    vectors = await write_numbers(outputs, lambda: list(map(form.to_json, outputs)))
    return EmbeddingAnswer(
        **asdict(head),
        data=[Embedding(index=index, embedding=vector) for index, vector in enumerate(vectors)],
        usage=usage_of(outputs),
    )


async def embed(call: ModelCall, body: EmbeddingBody) -> list[PoolingRequestOutput]:
    """The embedding of each input of `body`, which another API may have made of its own."""
    pooler = pooler_of(call.served, "embed")
    prompts = await read_inputs(call, body)
    if not prompts.prompts:
        raise BadRequest("input", "input must hold at least one text")
    params = PoolingParams(
        task="embed",
        dimensions=body.dimensions,
        normalize=body.normalize,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    if is_cutting(pooler, params):
        return await embed_long(call, body, prompts, params, pooler)
    return await run_all(call, body, prompts, params)


@pooling_endpoint("POST /pooling", body=PoolingBody, example=_EXAMPLE, answer=PoolingAnswer)
async def create_pooling(call: ModelCall) -> Answer:
    """Pool hidden states of each input, by task"""
    body: PoolingBody = call.body
    head = call.heading("pool")
    tasks = pooler_of(call.served).tasks
    if body.dimensions is not None:
        raise BadRequest("dimensions", "dimensions is currently not supported; use /v1/embeddings")
    if body.add_generation_prompt:
        raise BadRequest("add_generation_prompt", "add_generation_prompt must be absent or false")
    form = number_format(body)
    prompts = await read_inputs(call, body)
    params = PoolingParams(
        # Default task of an embedding model: one vector per input.
        task="embed" if body.task is None and "embed" in tasks else body.task,
        normalize=body.normalize,
        use_activation=body.use_activation,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    outputs = await run_all(call, body, prompts, params)
    if form.is_raw:
        return await write_numbers(outputs, partial(raw_answer, head, form, outputs))
    results = await write_numbers(outputs, lambda: list(map(form.to_json, outputs)))
    return PoolingAnswer(
        **asdict(head),
        data=[Pooled(index=index, data=result) for index, result in enumerate(results)],
        usage=usage_of(outputs),
    )


@pooling_endpoint("POST /classify", body=ClassifyBody, example=_EXAMPLE, answer=ClassifyAnswer)
async def create_classification(call: ModelCall) -> Answer:
    """The class of each text, and the scores of all classes"""
    body: ClassifyBody = call.body
    head = call.heading("classify")
    labels = pooler_of(call.served, "classify").labels
    prompts = await read_inputs(call, body)
    params = PoolingParams(
        task="classify",
        use_activation=body.use_activation,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    outputs = await run_all(call, body, prompts, params)
    classes = [
        partial(_classification, index, output, labels) for index, output in enumerate(outputs)
    ]
    return ClassifyAnswer(
        **asdict(head),
        data=await write_numbers(outputs, lambda: [classify() for classify in classes]),
        usage=usage_of(outputs),
    )


def _classification(
    index: int, output: PoolingRequestOutput, labels: tuple[str, ...]
) -> Classification:
    best = max(range(len(output.data)), key=output.data.__getitem__)
    return Classification(
        index=index,
        label=labels[best] if best < len(labels) else None,
        probs=to_list(output.data),
        num_classes=len(output.data),
    )
