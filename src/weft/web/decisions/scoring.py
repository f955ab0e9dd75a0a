"""/generative_scoring, as vLLM has it: the probability of labels as the next token of a query with each item."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from weft.core.aio.scores import write_scores
from weft.core.errors import BadRequest
from weft.schema.decisions import ItemScore, ScoringAnswer, ScoringBody
from weft.schema.usage import Usage
from weft.text.prompts import check_length
from weft.web.decisions.read import Reading, Split, num_scores, read_labels, reports_logits
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall, model_endpoint, naming

MAX_ITEMS = 2048
_NAMES = {"prompt": "query", "prompt_token_ids": "query", "logprob_token_ids": "label_token_ids"}
_EXAMPLE = {"query": "Is this a city? ", "items": ["Paris", "apple"], "label_token_ids": [1, 2]}


@model_endpoint(
    "POST /generative_scoring", body=ScoringBody, example=_EXAMPLE, answer=ScoringAnswer
)
async def create_scores(call: ModelCall) -> Answer:
    """Score each item by the probability of a label after the query with the item"""
    body: ScoringBody = call.body
    call.served.client.info.check_priority(body.priority or 0)
    if not 1 <= len(body.items) <= MAX_ITEMS:
        raise BadRequest("items", f"items must hold 1 to {MAX_ITEMS} items, got {len(body.items)}")
    if body.apply_softmax is False and reports_logits(call):
        raise BadRequest(
            "apply_softmax",
            "apply_softmax must be true: this server reports logits (--logprobs-mode)",
        )
    if len(set(map(type, body.items))) > 1:
        raise BadRequest("items", "items must hold texts, or lists of ids, and no mixture")
    with naming(_NAMES):
        prompts = await _prompts(call, body)
    labels = [body.label_token_ids] * len(prompts)
    readings = await read_labels(call, body, prompts, labels, _NAMES)
    num_prompt_tokens = sum(reading.num_prompt_tokens for reading in readings)
    return ScoringAnswer(
        **asdict(call.heading("generative-scoring")),
        data=await write_scores(
            num_scores(readings),
            lambda: [
                ItemScore(index=index, score=_score(body, reading))
                for index, reading in enumerate(readings)
            ],
        ),
        usage=Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=len(readings),
            total_tokens=num_prompt_tokens + len(readings),
        ),
    )


async def _prompts(call: ModelCall, body: ScoringBody) -> list[Split]:
    """The query's tokens, and those of each item behind or before them."""
    tokenizer = call.served.tokenizer
    texts = [part for part in (body.query, *body.items) if isinstance(part, str)]
    for text in texts:
        check_length(len(text), tokenizer, call.served.client.info.limits)
    encode = partial(tokenizer.encode, add_special_tokens=False)

    def to_ids(part: str | Sequence[int], *, has_special_tokens: bool) -> list[int]:
        if not isinstance(part, str):
            return [*part]
        return tokenizer.encode(part) if has_special_tokens else encode(part)

    def make() -> list[Split]:
        query = to_ids(body.query, has_special_tokens=body.add_special_tokens is not False)
        items = [to_ids(item, has_special_tokens=False) for item in body.items]
        return [(item, query) if body.item_first else (query, item) for item in items]

    return await tokenizer.soon(sum(map(len, texts)), make)


def _score(body: ScoringBody, reading: Reading) -> float:
    if body.apply_softmax is not False:
        return reading.probabilities[0]
    return math.exp(reading.scores[0])
