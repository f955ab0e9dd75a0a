"""/v1/embeddings: one vector for each input."""

from weft.core.errors import BadRequest
from weft.core.types import PoolingParams
from weft.schema.pooling import Embedding, EmbeddingAnswer, EmbeddingBody
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall
from weft.web.pooling.inputs import pooler_of, read_inputs
from weft.web.pooling.long_texts import embed_long, is_cutting
from weft.web.pooling.numbers import number_format, raw_answer
from weft.web.pooling.run import jobs_of, run_jobs, usage_of


async def create_embeddings(call: ModelCall) -> Answer:
    """The handler."""
    body: EmbeddingBody = call.body
    head = call.heading("embd")
    pooler = pooler_of(call.served, "embed")
    form = number_format(body)
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
        outputs = await embed_long(call, body, prompts, params, pooler)
    else:
        outputs = await run_jobs(call, body, jobs_of(prompts, params, body.cache_salt))
    usage = usage_of(outputs)
    if form.is_raw:
        return raw_answer(head, form, outputs, usage)
    is_text = form.encoding == "base64"
    return EmbeddingAnswer(
        id=head.id,
        created=head.created,
        model=head.model,
        data=[
            Embedding(index=index, embedding=form.to_text(o.data) if is_text else o.data)
            for index, o in enumerate(outputs)
        ],
        usage=usage,
    )
