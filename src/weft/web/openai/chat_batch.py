"""/v1/chat/completions/batch: several conversations with the same parameters, each answered by one choice."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from functools import partial

import msgspec

from weft.core.aio.merged import merged
from weft.core.aio.scores import let_go, write_scores
from weft.core.errors import BadRequest
from weft.core.values.logprobs import num_scores
from weft.schema.chat import BatchChatBody, ChatAnswer, ChatBody, ChatChoice, ChatFields
from weft.schema.usage import Usage
from weft.web.chat.fold import WholeTurn, fold
from weft.web.chat.run import PreparedTurn, prepare_turn, run_turn
from weft.web.chat.turn import Turn
from weft.web.http.endpoint import Answer
from weft.web.inference.call import AnswerDetails, ModelCall, model_endpoint, to_usage
from weft.web.inference.fields import beyond_openai
from weft.web.openai.chat import to_shape, to_turn, whole_choice
from weft.web.openai.chat_stream import ChatShape
from weft.web.openai.completions import MAX_ANSWERS

# Fields that vLLM's batches lack too, with the values that change nothing.
_REFUSED = {
    "n": (None, 1),
    "stream": (None, False),
    "use_beam_search": (None, False),
    "tools": (None, []),
    "tool_choice": (None, "none"),
    "prompt_logprobs": (None,),
    "kv_transfer_params": (None, {}),
    "return_prompt_text": (None, False),
}


@model_endpoint(
    "POST /v1/chat/completions/batch",
    body=BatchChatBody,
    example={"messages": [[{"role": "user", "content": "Hello!"}]], "max_tokens": 32},
    deviations=beyond_openai,
    answer=ChatAnswer,
)
async def create_chat_batch(call: ModelCall) -> Answer:
    """The next messages of several conversations: choice i belongs to conversation i"""
    body: BatchChatBody = call.body
    _check(body)
    jobs = [_job(call, body, position) for position in range(len(body.messages))]
    prepared = [await prepare_turn(call.served, turn) for turn, _ in jobs]
    runs = [_whole(call, turn, ready) for (turn, _), ready in zip(jobs, prepared, strict=True)]
    wholes: dict[int, WholeTurn] = {}
    choices: dict[int, ChatChoice] = {}
    async with aclosing(merged(runs)) as outputs:
        async for position, whole in outputs:
            wholes[position] = whole
            choices[position] = await _choice(position, whole, jobs[position][1])
    usage = _usage(list(wholes.values()), jobs[0][1].details)
    return ChatAnswer(
        **asdict(jobs[0][1].head),
        choices=[choices[position] for position in range(len(jobs))],
        usage=usage,
        prompt_logprobs=None,
        prompt_token_ids=None,
    )


def _check(body: BatchChatBody) -> None:
    for name, neutral in _REFUSED.items():
        value = getattr(body, name)
        if value not in neutral:
            raise BadRequest(
                name, f"{name} does not go with a batch of conversations; leave it out", value
            )
    if not 0 < len(body.messages) <= MAX_ANSWERS:
        raise BadRequest(
            "messages",
            f"messages must be 1 to {MAX_ANSWERS} conversations, got {len(body.messages)}",
        )


def _job(call: ModelCall, body: BatchChatBody, position: int) -> tuple[Turn, ChatShape]:
    shared = {name: getattr(body, name) for name in ChatFields.__struct_fields__}
    one = ChatBody(messages=body.messages[position], **shared)
    turn = to_turn(call, one)
    options = msgspec.structs.replace(turn.options, request_id=f"{call.request_id}-{position}")
    return replace(turn, options=options), to_shape(call, one, turn)


async def _whole(
    call: ModelCall, turn: Turn, prepared: PreparedTurn
) -> AsyncGenerator[WholeTurn, None]:
    yield await fold(run_turn(call.served, turn, prepared))


async def _choice(position: int, whole: WholeTurn, shape: ChatShape) -> ChatChoice:
    (answer,) = whole.answers
    choice = await write_scores(num_scores(answer.logprobs), partial(whole_choice, answer, shape))
    await let_go(answer.logprobs)
    return msgspec.structs.replace(choice, index=position)


def _usage(wholes: Sequence[WholeTurn], details: AnswerDetails) -> Usage:
    answers = [answer for whole in wholes for answer in whole.answers]
    return to_usage(
        details,
        num_prompt_tokens=sum(len(whole.prompt_token_ids) for whole in wholes),
        num_completion_tokens=sum(len(answer.token_ids) for answer in answers),
        num_cached_tokens=sum(whole.num_cached_tokens for whole in wholes),
        num_reasoning_tokens=sum(answer.num_reasoning_tokens for answer in answers),
    )
