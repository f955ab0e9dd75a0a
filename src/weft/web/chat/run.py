"""`run_turn`: a `Turn` in, its `TurnEvent`s out. The only place where a conversation meets the engine."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from weft.core.errors import BadRequest
from weft.core.types import OutputKind, PositionLogprobs, RequestOutput, SamplingParams
from weft.web.chat.answers import AnswerReader, Wishes
from weft.web.chat.format import AnswerFormat, choose_format, with_special_tokens
from weft.web.chat.prompt import Prompt, render, tokenise
from weft.web.chat.tools import check_tools, forced_calls
from weft.web.chat.turn import Began, Ended, Turn, TurnEvent
from weft.web.served import Served


async def run_turn(
    served: Served, turn: Turn, prompt: Prompt | None = None
) -> AsyncGenerator[TurnEvent, None]:
    """Began, a `TurnDelta` whenever there is news, Ended. Closing it aborts the request.

    What is wrong with a turn, and an engine that cannot take it, raise before the first event.
    `prompt` is what `prepare_turn` made of this turn, where that had to be known earlier.
    """
    if prompt is None:
        prompt = await prepare_turn(served, turn)
    form = choose_format(served, turn, prompt.text or "", prompt.params)
    wishes = Wishes.of(turn)
    readers = [
        AnswerReader(form.parser(), wishes, form.counter(served, prompt.token_ids))
        for _ in range(prompt.params.n)
    ]
    num_cached_tokens = 0
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    is_begun = False
    async with aclosing(_generate(served, form, prompt)) as outputs:
        async for output in outputs:
            if not is_begun:
                is_begun = True
                yield Began(
                    prompt=prompt.text or "",
                    prompt_token_ids=output.prompt_token_ids,
                    num_cached_tokens=output.num_cached_tokens,
                )
            num_cached_tokens = output.num_cached_tokens
            prompt_logprobs = output.prompt_logprobs or prompt_logprobs
            for answer in output.outputs:
                yield readers[answer.index].read(answer)
    yield Ended(num_cached_tokens=num_cached_tokens, prompt_logprobs=prompt_logprobs)


async def prepare_turn(served: Served, turn: Turn) -> Prompt:
    """The checked prompt of a turn, with the parameters that the engine is to use."""
    if turn.params.n > served.options.max_n:
        raise BadRequest(
            "n", f"n must be at most {served.options.max_n}, got {turn.params.n}", turn.params.n
        )
    check_tools(turn.tools, turn.tool_choice)
    params = with_special_tokens(served, turn, _params(turn))
    return await tokenise(
        served.client,
        await render(served, turn),
        params,
        turn.request_id,
        add_special_tokens=turn.add_special_tokens,
        truncation_side=turn.truncation_side,
        cache_salt=turn.cache_salt,
        priority=turn.priority,
    )


def _params(turn: Turn) -> SamplingParams:
    """The caller's parameters, with what this turn needs beside them."""
    kind = OutputKind.DELTA if turn.is_streamed else OutputKind.FINAL_ONLY
    forced = forced_calls(turn)
    if forced is None:
        return msgspec.structs.replace(turn.params, output_kind=kind)
    if turn.params.structured_outputs is not None:
        raise BadRequest(
            "tool_choice",
            "tool_choice forces a tool call and structured_outputs another form; give one of them",
        )
    return msgspec.structs.replace(turn.params, output_kind=kind, structured_outputs=forced)


def _generate(
    served: Served, form: AnswerFormat, prompt: Prompt
) -> AsyncGenerator[RequestOutput, None]:
    turn = form.turn
    return served.client.generate(
        prompt.tokens,
        prompt.params,
        turn.request_id,
        lora_request=served.lora_request(turn.model) if turn.model else None,
        trace_headers=turn.trace_headers,
        priority=turn.priority,
        data_parallel_rank=turn.data_parallel_rank,
        **form.engine_arguments(prompt.params),
    )
