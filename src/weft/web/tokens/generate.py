"""/inference/v1/generate: passes the body's parameters to the engine unchanged."""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec

from weft.core.aio.scores import let_go_of, write_scores
from weft.core.errors import BadRequest
from weft.core.values.kv_transfer import to_extra_args
from weft.core.values.logprobs import num_scores_of
from weft.core.values.types import OutputKind, RequestOptions, RequestOutput, SamplingParams
from weft.schema.tokens import TextAnswer, TextChunk, TokensAnswer, TokensBody, TokensChunk
from weft.text.parsers.table import REASONING_PARSERS
from weft.web.chat.prompt import with_salt
from weft.web.http.endpoint import Answer, Call, Events
from weft.web.inference.call import (
    ModelCall,
    check_stream_options,
    model_endpoint,
    usage_of_stream,
)
from weft.web.inference.fields import beyond_openai, refuse_unsupported
from weft.web.tokens.writer import TokensShape, write_events

# By name: the values that have no effect here, and why any other value is refused.
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "content_parts": (([],), "this server takes text only"),
    "ec_transfer_params": (({},), "this engine has no separate encoder"),
    "features": ((), "this server takes text only"),
    "reasoning_parser_kwargs": (
        ({}, {"chat_template_kwargs": {}}),
        "reasoning_ended says whether the reasoning has ended",
    ),
}


@model_endpoint(
    "POST /inference/v1/generate",
    body=TokensBody,
    example={"token_ids": [72, 105], "sampling_params": {"max_tokens": 16}},
    deviations=lambda body: beyond_openai(body.sampling_params),
    answer=TokensAnswer | TextAnswer,
    event=TokensChunk | TextChunk,
)
async def generate(call: ModelCall) -> Answer:
    """Token ids in, token ids out: what the gRPC method Generate does"""
    body: TokensBody = call.body
    check_body(call, body)
    params = body.sampling_params
    has_usage, has_running_usage = usage_of_stream(call.served.options, body.stream_options)
    shape = TokensShape(
        label=call.label,
        model=call.model,
        created=int(time.time()),
        mode=body.output_mode,
        logprobs=call.logprob_writer(params.logprobs, params.logprob_token_ids),
        has_prompt=bool(body.return_token_ids),
        has_usage=has_usage,
        has_running_usage=has_running_usage,
        has_cached_tokens=call.served.options.enable_prompt_tokens_details,
    )
    outputs = await _outputs(call, body)
    if body.stream:
        return Events(write_events(outputs, shape))
    async with aclosing(outputs):
        async for output in outputs:
            if output.is_finished:
                answer = await write_scores(num_scores_of(output), partial(shape.answer, output))
                await let_go_of(output)
                return answer
    raise AssertionError("an engine's stream ends with a finished output")


def check_body(call: Call, body: TokensBody) -> None:
    """Refuses unsupported features, and fields that contradict each other."""
    refuse_unsupported(body, REFUSED)
    if body.output_mode == "text" and not body.sampling_params.detokenize:
        raise BadRequest(
            "output_mode", 'output_mode "text" needs sampling_params.detokenize to be true'
        )
    if body.stream_options is not None:
        check_stream_options(body.stream_options, is_streamed=bool(body.stream))
    if body.stream and body.sampling_params.prompt_logprobs is not None:
        raise BadRequest(
            "sampling_params.prompt_logprobs",
            "prompt_logprobs are not available when stream is true",
        )
    if body.sampling_params.n > call.served.options.max_n:
        raise BadRequest("sampling_params.n", f"n must be at most {call.served.options.max_n}")
    call.served.client.info.check_priority(body.priority or 0)


async def _outputs(call: ModelCall, body: TokensBody) -> AsyncGenerator[RequestOutput, None]:
    kind = OutputKind.DELTA if body.stream else OutputKind.FINAL_ONLY
    decided = {"output_kind": kind, "extra_args": _extra_args(body)}
    client, options = call.served.client, _request_options(call, body)
    with client.preparing(body.sampling_params.n):
        request = await client.prepare(
            with_salt(body.token_ids, body.cache_salt),
            SamplingParams(**{**msgspec.structs.asdict(body.sampling_params), **decided}),
            options,
        )
        request = await call.served.prefilled(request, options)
    return client.run(request)


def _extra_args(body: TokensBody) -> dict[str, Any] | None:
    """Returns the transfer parameters, from the body or from the sampling parameters, as in Python."""
    given = to_extra_args(body.kv_transfer_params, is_announced=bool(body.stream))
    if given and body.sampling_params.extra_args:
        message = "kv_transfer_params and sampling_params.extra_args do not go together"
        raise BadRequest("kv_transfer_params", message)
    return given or body.sampling_params.extra_args


def _request_options(call: ModelCall, body: TokensBody) -> RequestOptions:
    """Returns the engine's options; the end of reasoning matters only to constraints and budgets."""
    options, params = call.request_options(body.priority), body.sampling_params
    name = call.served.options.reasoning_parser
    if body.reasoning_ended is None or name is None:
        return msgspec.structs.replace(options, reasoning_ended=body.reasoning_ended)
    if params.structured_outputs is None and params.thinking_token_budget is None:
        return options
    return msgspec.structs.replace(
        options,
        reasoning_ended=body.reasoning_ended,
        reasoning_parser_kwargs={"end": REASONING_PARSERS[name].reasoning_end},
    )
