"""/inference/v1/generate: the body's own parameters go to the engine as they are."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import msgspec

from weft.core.errors import BadRequest
from weft.core.types import CompletionOutput, OutputKind, RequestOutput
from weft.schema.tokens import TokensAnswer, TokensBody, TokensChoice, TokensChunk
from weft.schema.usage import PromptTokensDetails, Usage
from weft.text.outputs import num_rows_of, write_rows
from weft.web.chat.prompt import check_priority, with_salt
from weft.web.http.endpoint import Answer, Call, Events
from weft.web.http.sse import DONE, data_event
from weft.web.inference.call import ModelCall
from weft.web.inference.fields import refuse_unsupported
from weft.web.inference.logprobs import LogprobWriter, to_prompt_logprobs


async def generate(call: ModelCall) -> Answer:
    """The handler."""
    body: TokensBody = call.body
    check_body(call, body)
    shape = _Shape(
        label=call.label,
        model=call.model,
        logprobs=_logprob_writer(call, body),
        has_usage=bool(body.stream_options and body.stream_options.include_usage),
        has_cached_tokens=call.served.options.enable_prompt_tokens_details,
    )
    outputs = await _outputs(call, body)
    if body.stream:
        return Events(_events(outputs, shape))
    async with aclosing(outputs):
        async for output in outputs:
            if output.is_finished:
                return await write_rows(num_rows_of(output), partial(shape.answer, output))
    raise AssertionError("an engine's stream ends with a finished output")


def check_body(call: Call, body: TokensBody) -> None:
    """Refuse what is not offered, and what contradicts itself."""
    if body.features is not None:
        raise BadRequest("features", "features must be absent: this server takes text only")
    refuse_unsupported(body)
    options = body.stream_options
    if options is not None and not body.stream:
        raise BadRequest("stream_options", "stream_options needs stream to be true")
    if options is not None and (options.continuous_usage_stats or options.include_obfuscation):
        raise BadRequest("stream_options", "only include_usage may be asked for here")
    if body.stream and body.sampling_params.prompt_logprobs is not None:
        raise BadRequest(
            "sampling_params.prompt_logprobs",
            "prompt_logprobs are not available when stream is true",
        )
    if body.sampling_params.n > call.served.options.max_n:
        raise BadRequest("sampling_params.n", f"n must be at most {call.served.options.max_n}")
    check_priority(call.served.client, body.priority or 0)


async def _outputs(call: ModelCall, body: TokensBody) -> AsyncGenerator[RequestOutput, None]:
    kind = OutputKind.DELTA if body.stream else OutputKind.FINAL_ONLY
    client = call.served.client
    with client.preparing(max(1, body.sampling_params.n)):
        request = await client.prepare(
            with_salt(body.token_ids, body.cache_salt),
            msgspec.structs.replace(body.sampling_params, output_kind=kind),
            call.request_options(body.priority),
        )
    return client.run(request)


def _logprob_writer(call: Call, body: TokensBody) -> LogprobWriter:
    return LogprobWriter(
        tokenizer=call.served.tokenizer,
        num_top=body.sampling_params.logprobs or 0,
        is_naming_by_id=call.served.options.return_tokens_as_token_ids,
        chosen_ids=body.sampling_params.logprob_token_ids,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """How one request's answer is written."""

    label: str
    model: str
    logprobs: LogprobWriter
    has_usage: bool
    has_cached_tokens: bool

    def answer(self, output: RequestOutput) -> TokensAnswer:
        return TokensAnswer(
            request_id=self.label,
            model=self.model,
            choices=[self.choice(answer) for answer in output.outputs],
            usage=self.usage(output, sum(len(answer.token_ids) for answer in output.outputs)),
            prompt_logprobs=to_prompt_logprobs(output.prompt_logprobs),
        )

    def choice(self, answer: CompletionOutput) -> TokensChoice:
        return TokensChoice(
            index=answer.index,
            token_ids=answer.token_ids,
            logprobs=None if answer.logprobs is None else self.logprobs.chat(answer.logprobs),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
        )

    def usage(self, output: RequestOutput, num_tokens: int) -> Usage:
        num_prompt_tokens = len(output.prompt_token_ids)
        cached = PromptTokensDetails(cached_tokens=output.num_cached_tokens)
        return Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_tokens,
            total_tokens=num_prompt_tokens + num_tokens,
            prompt_tokens_details=cached if self.has_cached_tokens else msgspec.UNSET,
        )


async def _events(
    outputs: AsyncGenerator[RequestOutput, None], shape: _Shape
) -> AsyncGenerator[bytes, None]:
    """A chunk for every delta of an answer, the usage if wanted, the end."""
    num_tokens = 0
    last: RequestOutput | None = None
    async with aclosing(outputs):
        async for output in outputs:
            last = output
            for answer in output.outputs:
                num_tokens += len(answer.token_ids)
                chunk = TokensChunk(
                    request_id=shape.label, model=shape.model, choices=[shape.choice(answer)]
                )
                yield data_event(chunk)
    if shape.has_usage and last is not None:
        usage = shape.usage(last, num_tokens)
        yield data_event(
            TokensChunk(request_id=shape.label, model=shape.model, choices=[], usage=usage)
        )
    yield DONE
