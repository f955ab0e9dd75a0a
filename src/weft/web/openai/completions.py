"""/v1/completions: the body to prompts and parameters, and the engine's outputs to the answer."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from weft.core.errors import BadRequest
from weft.core.types import OutputKind, RequestOutput, SamplingParams
from weft.core.validate import MAX_N
from weft.schema.completion import CompletionAnswer, CompletionBody, CompletionChoice
from weft.web.chat.prompt import Prompt, tokenise
from weft.web.http.endpoint import Answer, Call, Events
from weft.web.openai.calling import check_streamable, heading, rank_of, telling, trace_of
from weft.web.openai.completion_run import merged
from weft.web.openai.completion_stream import (
    CompletionShape,
    PromptWriter,
    completion_events,
    total_usage,
)
from weft.web.openai.logprobs import LogprobWriter, to_prompt_logprobs
from weft.web.openai.sampling import to_params
from weft.web.openai.unsupported import refuse_unsupported
from weft.web.served import Served

DEFAULT_MAX_TOKENS = 16  # as published
# Every prompt has n answers, and each of them a place in the queue.
MAX_ANSWERS = MAX_N


async def create_completion(call: Call) -> Answer:
    """The handler."""
    body: CompletionBody = call.body
    check_body(body)
    head = heading(call, body, prefix="cmpl", created=int(time.time()))
    params = completion_params(call.served, body)
    prompts = await read_prompts(call, body, params)
    shape = CompletionShape(
        head=head,
        telling=telling(call, body),
        num_answers=params.n,
        echoes=[_echo(call.served, prompt, params) for prompt in prompts] if body.echo else None,
        is_prompt_only=_is_prompt_only(body),
        logprobs=_logprob_writer(call, body),
    )
    outputs = await _outputs(call, body, prompts)
    if body.stream:
        return Events(completion_events(outputs, len(prompts), shape))
    return await _answer(
        outputs, len(prompts), shape, has_prompt_rows=body.prompt_logprobs is not None
    )


# -- body to parameters -------------------------------------------------------------------------


def check_body(body: CompletionBody) -> None:
    """Refuse what is not offered, and what contradicts itself."""
    if body.best_of is not None and body.best_of == (1 if body.n is None else body.n):
        body = msgspec.structs.replace(body, best_of=None)  # all that are made are shown
    refuse_unsupported(body)
    check_streamable(body)
    if body.logprob_token_ids and body.logprobs is None:
        raise BadRequest("logprob_token_ids", "logprob_token_ids needs logprobs")


def completion_params(served: Served, body: CompletionBody) -> SamplingParams:
    """How to sample the answers to each prompt."""
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = to_params(
        body,
        served.client.model_config.default_sampling_params,
        # The engine computes a prompt on the way to a token.
        max_tokens=1 if _is_prompt_only(body) else max_tokens,
        logprobs=body.logprobs,
    )
    kind = OutputKind.DELTA if body.stream else OutputKind.FINAL_ONLY
    if body.echo and params.prompt_logprobs is None:
        params = msgspec.structs.replace(params, prompt_logprobs=body.logprobs)
    return msgspec.structs.replace(params, output_kind=kind)


def _is_prompt_only(body: CompletionBody) -> bool:
    return bool(body.echo) and body.max_tokens == 0


def split_prompts(prompt: str | list[str | int | list[int]] | None) -> list[str | list[int]]:
    """The prompts, each a text or ids; `BadRequest` for a mixture and for none."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadRequest("prompt", "prompt must be a text, a list of texts, ids, or a list of ids")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise BadRequest(
            "prompt", "prompt must hold texts, or ids, or lists of ids, and no mixture"
        )
    if kinds == {int}:
        return [[item for item in prompt if isinstance(item, int)]]
    return [item for item in prompt if not isinstance(item, int)]


async def read_prompts(call: Call, body: CompletionBody, params: SamplingParams) -> list[Prompt]:
    """All prompts, tokenised and checked before the engine knows of the first."""
    given = split_prompts(body.prompt)
    if params.n > call.served.options.max_n:
        raise BadRequest("n", f"n must be at most {call.served.options.max_n}, got {params.n}")
    if len(given) * max(params.n, 1) > MAX_ANSWERS:
        raise BadRequest(
            "prompt",
            f"at most {MAX_ANSWERS} answers are made at once, "
            f"got {len(given)} prompts with {params.n} each",
        )
    return [
        await tokenise(
            call.served.client,
            prompt,
            params,
            call.request_id,
            add_special_tokens=body.add_special_tokens is not False,
            truncation_side=body.truncation_side,
            cache_salt=body.cache_salt,
            priority=body.priority or 0,
        )
        for prompt in given
    ]


def _echo(served: Served, prompt: Prompt, params: SamplingParams) -> str:
    """The prompt's text: as it was given, unless it came as ids or was cut."""
    if prompt.text is not None and params.truncate_prompt_tokens is None:
        return prompt.text
    return served.tokenizer.decode(prompt.token_ids, skip_special_tokens=params.skip_special_tokens)


def _logprob_writer(call: Call, body: CompletionBody) -> LogprobWriter | None:
    if body.logprobs is None:
        return None
    return LogprobWriter(
        tokenizer=call.served.tokenizer,
        num_top=body.logprobs,
        is_naming_by_id=telling(call, body).is_naming_by_id,
        chosen_ids=body.logprob_token_ids,
    )


# -- engine to answer ---------------------------------------------------------------------------


async def _outputs(
    call: Call, body: CompletionBody, prompts: list[Prompt]
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """The outputs of all prompts; nothing has begun before the first is asked for."""
    trace = await trace_of(call.served, call.headers)
    rank = rank_of(call.headers)
    return merged(
        [
            call.served.client.generate(
                prompt.tokens,
                prompt.params,
                f"{call.request_id}-{position}",
                trace_headers=trace,
                priority=body.priority or 0,
                data_parallel_rank=rank,
            )
            for position, prompt in enumerate(prompts)
        ]
    )


async def _answer(
    outputs: AsyncGenerator[tuple[int, RequestOutput], None],
    num_prompts: int,
    shape: CompletionShape,
    *,
    has_prompt_rows: bool,
) -> CompletionAnswer:
    """Everything in one piece: each prompt's one output, written as a stream would."""
    writers = [PromptWriter(position, shape) for position in range(num_prompts)]
    choices: list[CompletionChoice] = []
    async with aclosing(outputs):
        async for position, output in outputs:
            writer = writers[position]
            for news in writer.choices(output):
                rows = to_prompt_logprobs(writer.prompt_logprobs) if has_prompt_rows else None
                whole = msgspec.structs.asdict(news)
                choices.append(CompletionChoice(**whole, prompt_logprobs=rows))
    return CompletionAnswer(
        id=shape.head.id,
        created=shape.head.created,
        model=shape.head.model,
        choices=sorted(choices, key=lambda choice: choice.index),
        usage=total_usage(writers, shape),
    )
