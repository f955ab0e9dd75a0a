"""/score and /rerank: how well texts go together, by a cross-encoder or by their embeddings."""

from collections.abc import Sequence
from dataclasses import asdict

from msgspec import UNSET

from weft.core.checks.scoring import Pair, cosine, is_cross_encoder, pair_up
from weft.core.errors import BadRequest
from weft.core.values.prompts import PromptType
from weft.core.values.types import PoolingParams, PoolingRequestOutput
from weft.schema.pooling import (
    PoolingFields,
    PoolingUsage,
    RerankAnswer,
    RerankBody,
    RerankDocument,
    RerankResult,
    Score,
    ScoreAnswer,
    ScoreBody,
)
from weft.text.templates.chat import ChatTemplate
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall
from weft.web.pooling.numbers import write_numbers
from weft.web.pooling.pool import pooling_endpoint
from weft.web.pooling.run import (
    MAX_INPUTS,
    Prompts,
    check_fields,
    pooler_of,
    run_all,
    tokenization,
    usage_of,
)


@pooling_endpoint(
    "POST /score",
    body=ScoreBody,
    example={"queries": "capital of France", "documents": ["Paris", "Rome"]},
    answer=ScoreAnswer,
)
async def create_score(call: ModelCall) -> Answer:
    """Score how well two texts match"""
    body: ScoreBody = call.body
    head = call.heading("score")
    scores, usage = await _scores(call, body, _pairs(body), is_scaled=body.use_activation)
    return ScoreAnswer(
        **asdict(head),
        data=[Score(index=index, score=score) for index, score in enumerate(scores)],
        usage=usage,
    )


@pooling_endpoint(
    "POST /rerank",
    body=RerankBody,
    example={"query": "capital of France", "documents": ["Paris", "Rome"]},
    answer=RerankAnswer,
)
async def create_ranking(call: ModelCall) -> Answer:
    """Documents in the order in which they answer a query"""
    body: RerankBody = call.body
    head = call.heading("rerank")
    if body.top_n is not None and body.top_n < 0:
        raise BadRequest("top_n", f"top_n must be 0 or more, got {body.top_n}")
    if body.max_tokens_per_doc is not None:
        raise BadRequest("max_tokens_per_doc", "max_tokens_per_doc is not supported yet")
    _check_number(len(body.documents))
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    if not texts:
        raise BadRequest("documents", "documents must hold at least one text")
    pairs = [(body.query, text) for text in texts]
    scores, usage = await _scores(call, body, pairs, is_scaled=body.use_activation)
    # Sorting is stable: documents with equal scores keep their order.
    order = sorted(range(len(texts)), key=lambda index: -scores[index])
    shows = body.return_documents is not False
    return RerankAnswer(
        id=head.id,
        model=head.model,
        usage=usage,
        results=[
            RerankResult(
                index=index,
                document=RerankDocument(text=texts[index]) if shows else UNSET,
                relevance_score=scores[index],
            )
            for index in order[: body.top_n or len(order)]
        ],
    )


def _pairs(body: ScoreBody) -> list[Pair]:
    """Returns one pair, one text with each document, or each text with its counterpart."""
    forms = (("text_1", "text_2"), ("queries", "documents"))
    given = [form for form in forms if any(getattr(body, name) is not None for name in form)]
    if len(given) != 1:
        raise BadRequest("text_1", "give either text_1 and text_2, or queries and documents")
    first, second = (_texts(getattr(body, name)) for name in given[0])
    _check_number(max(len(first), len(second)))  # the texts are scored in pairs
    return pair_up(first, second, given[0])


def _check_number(number: int) -> None:
    if number > MAX_INPUTS:
        raise BadRequest(
            "documents", f"at most {MAX_INPUTS} texts are scored at once, got {number}"
        )


def _texts(given: str | list[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else given or []


async def _scores(
    call: ModelCall, body: PoolingFields, pairs: list[Pair], *, is_scaled: bool | None
) -> tuple[list[float], PoolingUsage]:
    pooler = pooler_of(call.served)
    check_fields(call.served, body)
    if is_cross_encoder(pooler):
        return await _by_cross_encoder(call, body, pairs, is_scaled=is_scaled)
    if is_scaled is not None:
        raise BadRequest("use_activation", "use_activation is for models that classify")
    return await _by_embeddings(call, body, pairs)


async def _by_cross_encoder(
    call: ModelCall, body: PoolingFields, pairs: list[Pair], *, is_scaled: bool | None
) -> tuple[list[float], PoolingUsage]:
    params = PoolingParams(
        task="classify",
        use_activation=is_scaled,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    template = call.served.chat_template
    has_roles = template is not None and all(
        role in template.source for role in ("query", "document")
    )
    prompts: list[PromptType] = []
    for query, document in pairs:
        if template is not None and has_roles:
            prompts.append({"prompt": await _render(template, query, document)})
        else:
            prompts.append({"prompt": query, "prompt_pair": document})
    kwargs = tokenization(body, add_special_tokens=not has_roles)
    outputs = await run_all(call, body, Prompts(prompts, kwargs), params)
    return [output.data[0] for output in outputs], usage_of(outputs)


async def _render(template: ChatTemplate, query: str, document: str) -> str:
    """Renders the pair with the model's score template."""
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    text, _ = await template.processes.run_soon(
        lambda: (template.prepare(messages, add_generation_prompt=False), None)
    )
    return text


async def _by_embeddings(
    call: ModelCall, body: PoolingFields, pairs: list[Pair]
) -> tuple[list[float], PoolingUsage]:
    """Scores by embeddings; every text is embedded once, however many texts it is compared with."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    params = PoolingParams(task="embed", truncate_prompt_tokens=body.truncate_prompt_tokens)
    kwargs = tokenization(body, add_special_tokens=True)
    outputs = await run_all(call, body, Prompts(texts, kwargs), params)
    by_text = dict(zip(texts, outputs, strict=True))
    scores = await write_numbers(
        outputs, lambda: [cosine(by_text[a].data, by_text[b].data) for a, b in pairs]
    )
    return scores, _usage_of_pairs([(by_text[a], by_text[b]) for a, b in pairs], call)


def _usage_of_pairs(
    pairs: Sequence[tuple[PoolingRequestOutput, PoolingRequestOutput]], call: ModelCall
) -> PoolingUsage:
    """Usage as the reference counts: both texts of each pair, and padding between them, if there is any."""
    padding = 0 if call.served.tokenizer.pad_token_id is None else 1
    total = sum(len(a.prompt_token_ids) + padding + len(b.prompt_token_ids) for a, b in pairs)
    return PoolingUsage(prompt_tokens=total, total_tokens=total)
