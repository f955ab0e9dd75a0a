"""/pooling: whatever the model makes of each input; and /classify: its class."""

from weft.core.errors import BadRequest
from weft.core.types import PoolingParams, PoolingRequestOutput
from weft.schema.pooling import (
    Classification,
    ClassifyAnswer,
    ClassifyBody,
    Pooled,
    PoolingAnswer,
    PoolingBody,
)
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall
from weft.web.pooling.inputs import pooler_of, read_inputs
from weft.web.pooling.numbers import number_format, raw_answer, to_json
from weft.web.pooling.run import jobs_of, run_jobs, usage_of


async def create_pooling(call: ModelCall) -> Answer:
    """The handler of /pooling."""
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
        # The task of an embedder where the body names none: one vector of each input.
        task="embed" if body.task is None and "embed" in tasks else body.task,
        normalize=body.normalize,
        use_activation=body.use_activation,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    outputs = await run_jobs(call, body, jobs_of(prompts, params, body.cache_salt))
    usage = usage_of(outputs)
    if form.is_raw:
        return raw_answer(head, form, outputs, usage)
    is_text = form.encoding == "base64"
    return PoolingAnswer(
        id=head.id,
        created=head.created,
        model=head.model,
        data=[
            Pooled(index=index, data=form.to_text(o.data) if is_text else to_json(o))
            for index, o in enumerate(outputs)
        ],
        usage=usage,
    )


async def create_classification(call: ModelCall) -> Answer:
    """The handler of /classify."""
    body: ClassifyBody = call.body
    head = call.heading("classify")
    labels = pooler_of(call.served, "classify").labels
    prompts = await read_inputs(call, body)
    params = PoolingParams(
        task="classify",
        use_activation=body.use_activation,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    outputs = await run_jobs(call, body, jobs_of(prompts, params, body.cache_salt))
    return ClassifyAnswer(
        id=head.id,
        created=head.created,
        model=head.model,
        data=[_classification(index, output, labels) for index, output in enumerate(outputs)],
        usage=usage_of(outputs),
    )


def _classification(
    index: int, output: PoolingRequestOutput, labels: tuple[str, ...]
) -> Classification:
    best = max(range(len(output.data)), key=output.data.__getitem__)
    return Classification(
        index=index,
        label=labels[best] if best < len(labels) else None,
        probs=output.data,
        num_classes=len(output.data),
    )
