"""/v1/completions: the body to prompts and parameters, and the engine's outputs to the answer."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import msgspec

from weft.core.aio.merged import merged
from weft.core.aio.scores import let_go_of, write_scores
from weft.core.checks.validate import MAX_N, Limits
from weft.core.errors import BadRequest
from weft.core.values.logprobs import num_scores_of
from weft.core.values.prompts import Prompt
from weft.core.values.types import (
    OutputKind,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
)
from weft.schema.completion import (
    CompletionAnswer,
    CompletionBody,
    CompletionChoice,
    CompletionChunk,
)
from weft.text.prompt_embeds import check_enabled, read_base64
from weft.web.chat.prompt import prepare, tokenization_kwargs, with_salt
from weft.web.chat.run import run_request
from weft.web.http.endpoint import Answer, Events
from weft.web.http.sse import EventSink
from weft.web.inference.call import (
    CHARS_PER_ID,
    ModelCall,
    check_repeated,
    check_streamable,
    model_endpoint,
    naming,
    to_details,
)
from weft.web.inference.fields import (
    REFUSED_BESIDE_BEAMS,
    beyond_openai,
    refuse_unsupported,
    to_length_penalty,
    to_params,
)
from weft.web.inference.logprobs import to_prompt_logprobs
from weft.web.openai.completion_stream import (
    CompletionShape,
    PromptWriter,
    completion_events,
    total_usage,
)
from weft.web.served import Served

_NAMES = {"prompt_token_ids": "prompt"}
DEFAULT_MAX_TOKENS = 16  # the default of OpenAI's API
EXAMPLE = {"prompt": "The capital of France is", "max_tokens": 16}
# Every prompt has n answers, and each answer takes a place in the queue.
MAX_ANSWERS = MAX_N


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionJob:
    """A parsed body: the engine's requests, and the form of the answers.

    With a `length_penalty`, beams are searched.
    """

    requests: list[Request]
    options: RequestOptions
    length_penalty: float | None
    shape: CompletionShape
    has_prompt_rows: bool

    def writers(self) -> list[PromptWriter]:
        """Returns a writer for the answers to each prompt."""
        return [PromptWriter(position, self.shape) for position in range(len(self.requests))]


@model_endpoint(
    "POST /v1/completions",
    body=CompletionBody,
    example=EXAMPLE,
    deviations=beyond_openai,
    answer=CompletionAnswer,
    event=CompletionChunk,
)
async def create_completion(call: ModelCall) -> Answer:
    """Complete one or several texts, whole or streamed"""
    body: CompletionBody = call.body
    job = await to_job(call, body)
    if not body.stream:
        return await _answer(_outputs(call.served, job), job)
    writers = job.writers()
    # With several prompts, each stream would delay the others; many logprobs are written on a thread.
    has_sink = len(writers) == 1 and job.shape.logprobs is None
    sink = EventSink(writers[0].events) if has_sink else None
    outputs = _outputs(call.served, job, sink)
    return Events(completion_events(outputs, writers, job.shape), sink=sink)


async def to_job(call: ModelCall, body: CompletionBody) -> CompletionJob:
    """Converts a body to a job: every field is used or refused, every prompt is known to fit."""
    check_body(body)
    details = to_details(call, body, reads_reasoning=False)
    params = completion_params(call.served, body)
    length_penalty = to_length_penalty(call.served.client.info.limits, body, params)
    if length_penalty is not None and body.prompt_embeds:
        raise BadRequest("use_beam_search", "use_beam_search does not go with prompt_embeds")
    if length_penalty is not None and params.prompt_logprobs is not None:
        raise BadRequest("echo", "echo with logprobs does not go with use_beam_search")
    requests = await prepare_all(call, body, params)
    echoes = [await _echo(call.served, request, params) for request in requests if body.echo]
    if body.echo or details.has_token_ids:
        num_ids = sum(len(request.prompt_token_ids) for request in requests)
        num_chars = max(sum(map(len, echoes)), CHARS_PER_ID * num_ids)
        check_repeated("echo" if body.echo else "return_token_ids", params.n * num_chars)
    shape = CompletionShape(
        head=call.heading("cmpl"),
        details=details,
        num_answers=params.n,
        echoes=echoes if body.echo else None,
        is_prompt_only=_is_prompt_only(body),
        is_streamed=bool(body.stream),
        logprobs=None
        if body.logprobs is None
        else call.logprob_writer(
            body.logprobs,
            body.logprob_token_ids,
            is_naming_by_id=details.is_naming_by_id,
        ),
    )
    return CompletionJob(
        requests=requests,
        options=call.request_options(body.priority),
        length_penalty=length_penalty,
        shape=shape,
        # Logprobs of an echoed prompt are requested with `logprobs`.
        has_prompt_rows=params.prompt_logprobs is not None,
    )


# -- body to parameters -------------------------------------------------------------------------


def check_body(body: CompletionBody) -> None:
    """Refuses unsupported features, and fields that contradict each other."""
    if body.best_of is not None and body.best_of == (1 if body.n is None else body.n):
        body = msgspec.structs.replace(body, best_of=None)  # all generated answers are returned
    refuse_unsupported(body, REFUSED_BESIDE_BEAMS)
    check_streamable(body)
    if body.echo and body.prompt_embeds:
        raise BadRequest("echo", "echo does not go with prompt_embeds, which have no text")
    if body.logprob_token_ids and body.logprobs is None:
        raise BadRequest("logprob_token_ids", "logprob_token_ids needs logprobs")


def completion_params(served: Served, body: CompletionBody) -> SamplingParams:
    """Returns the sampling parameters for the answers to each prompt."""
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = to_params(
        body,
        served.client.model_config.default_sampling_params,
        # The engine computes a prompt only if at least one token is generated.
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
    """The prompts, each a text or ids; raises `BadRequest` for a mixture, or if there are none."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadRequest("prompt", "prompt must be a text, a list of texts, ids, or a list of ids")
    kinds = set(map(type, prompt))
    if len(kinds) > 1:
        raise BadRequest(
            "prompt", "prompt must hold texts, or ids, or lists of ids, and no mixture"
        )
    if kinds == {int}:
        return [cast(list[int], prompt)]
    return cast(list[str | list[int]], prompt)


async def given_prompts(body: CompletionBody, limits: Limits) -> list[str | list[int] | Prompt]:
    """The prompts in the order of their answers: embeddings first, without an empty text beside them."""
    if not body.prompt_embeds:
        return [*split_prompts(body.prompt)]
    texts = [body.prompt_embeds] if isinstance(body.prompt_embeds, str) else body.prompt_embeds
    check_enabled(limits)
    beside = split_prompts(body.prompt) if body.prompt else []
    _check_num_answers(len(texts) + len(beside), body.n or 1)
    parts = [await asyncio.to_thread(read_base64, text, limits) for text in texts]
    return [*(Prompt(parts=(part,)) for part in parts), *beside]


def _check_num_answers(num_prompts: int, n: int) -> None:
    if num_prompts * max(n, 1) > MAX_ANSWERS:
        raise BadRequest(
            "prompt",
            f"at most {MAX_ANSWERS} answers are made at once, got {num_prompts} prompts with {n} each",
        )


async def prepare_all(
    call: ModelCall, body: CompletionBody, params: SamplingParams
) -> list[Request]:
    """Tokenizes and checks all prompts before the engine receives the first."""
    served = call.served
    given = await given_prompts(body, served.client.info.limits)
    if params.n > served.options.max_n:
        raise BadRequest("n", f"n must be at most {served.options.max_n}, got {params.n}")
    _check_num_answers(len(given), params.n)
    if params.extra_args is not None and len(given) > 1:
        raise BadRequest(
            "kv_transfer_params", "kv_transfer_params is only supported for a single prompt"
        )
    options = msgspec.structs.replace(
        call.request_options(body.priority),
        tokenization_kwargs=tokenization_kwargs(
            add_special_tokens=body.add_special_tokens is not False,
            truncation_side=body.truncation_side,
        ),
    )
    requests: list[Request] = []
    with served.client.preparing(len(given) * params.n):
        for position, prompt in enumerate(given):
            if position:
                await asyncio.sleep(0)  # a short prompt needs no separate turn of the event loop
            own = msgspec.structs.replace(options, request_id=f"{call.request_id}-{position}")
            salted = with_salt(prompt, body.cache_salt)
            with naming(_NAMES):
                requests.append(await prepare(served, salted, params, own))
    return requests


async def _echo(served: Served, request: Request, params: SamplingParams) -> str:
    """The prompt's text: as given, or decoded if it came as ids or was truncated."""
    if request.prompt is not None and params.truncate_prompt_tokens is None:
        return request.prompt
    return await asyncio.to_thread(
        served.tokenizer.decode,
        request.prompt_token_ids,
        skip_special_tokens=params.skip_special_tokens,
    )


# -- engine to answer ---------------------------------------------------------------------------


def _outputs(
    served: Served, job: CompletionJob, sink: EventSink | None = None
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """The outputs of all prompts; the requests start when the first output is awaited."""
    run = partial(
        run_request, served.client, options=job.options, length_penalty=job.length_penalty
    )
    return merged([run(request, sink=sink) for request in job.requests])


async def _answer(
    outputs: AsyncGenerator[tuple[int, RequestOutput], None], job: CompletionJob
) -> CompletionAnswer:
    """The answer in one piece: each prompt's single output, written as a stream would write it."""
    shape = job.shape
    writers = job.writers()
    choices: list[CompletionChoice] = []
    kv_transfer_params: dict[str, Any] | None = None
    async with aclosing(outputs):
        async for position, output in outputs:
            kv_transfer_params = output.kv_transfer_params
            writer = writers[position]
            choices += await write_scores(
                num_scores_of(output), partial(_whole_choices, writer, output, job)
            )
            await let_go_of(output)
    return CompletionAnswer(
        **asdict(shape.head),
        choices=sorted(choices, key=lambda choice: choice.index),
        usage=total_usage(writers, shape),
        kv_transfer_params=kv_transfer_params,
    )


def _whole_choices(
    writer: PromptWriter, output: RequestOutput, job: CompletionJob
) -> list[CompletionChoice]:
    choices = list(writer.choices(output))
    rows = to_prompt_logprobs(writer.prompt_logprobs) if job.has_prompt_rows else None
    return [
        CompletionChoice(**msgspec.structs.asdict(one), prompt_logprobs=rows) for one in choices
    ]
