"""Converts outputs for /inference/v1/generate: one answer, or chunks of a stream."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.core.aio.scores import write_scores
from weft.core.values.logprobs import num_scores
from weft.core.values.types import CompletionOutput, RequestOutput
from weft.schema.tokens import (
    OutputMode,
    TextAnswer,
    TextChoice,
    TextChunk,
    TokensAnswer,
    TokensChoice,
    TokensChunk,
    WeightVersionSpan,
)
from weft.schema.usage import PromptTokensDetails, Usage
from weft.web.http.sse import DONE, data_event
from weft.web.inference.logprobs import LogprobWriter, to_prompt_logprobs

# The server does not version its weights; trainers call the first version "default".
_WEIGHTS = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensShape:
    """Form of a request's answer. `has_prompt` repeats the prompt's token ids."""

    label: str
    model: str
    created: int
    mode: OutputMode
    logprobs: LogprobWriter
    has_prompt: bool
    has_usage: bool
    has_running_usage: bool
    has_cached_tokens: bool

    def answer(self, output: RequestOutput) -> TokensAnswer | TextAnswer:
        kind: Any = TextAnswer if self.mode == "text" else TokensAnswer
        answer: TokensAnswer | TextAnswer = kind(
            **self._head(),
            choices=[self._choice(answer, len(answer.token_ids)) for answer in output.outputs],
            usage=self.usage(output, sum(len(answer.token_ids) for answer in output.outputs)),
            prompt_logprobs=to_prompt_logprobs(output.prompt_logprobs),
            prompt_token_ids=output.prompt_token_ids if self.has_prompt else None,
            kv_transfer_params=output.kv_transfer_params,
        )
        return answer

    def chunk(
        self, answer: CompletionOutput, output: RequestOutput, num_tokens: int
    ) -> TokensChunk | TextChunk:
        """A chunk; `num_tokens` of the answer were sent so far, including this chunk's."""
        usage = self.usage(output, num_tokens) if self.has_running_usage else UNSET
        chunk = self._chunk([self._choice(answer, num_tokens)], usage)
        return replace(chunk, kv_transfer_params=output.kv_transfer_params or UNSET)

    def lent(self, output: RequestOutput) -> TokensChunk | TextChunk:
        """Returns an answer without tokens that says where the prompt's KV blocks can be fetched."""
        chunk = self._chunk([], UNSET)
        return replace(chunk, kv_transfer_params=output.kv_transfer_params or UNSET)

    def end(self, output: RequestOutput, num_tokens: int) -> TokensChunk | TextChunk:
        """The last chunk: no answer, but the usage of all."""
        return self._chunk([], self.usage(output, num_tokens))

    def usage(self, output: RequestOutput, num_tokens: int) -> Usage:
        num_prompt_tokens = len(output.prompt_token_ids)
        cached = PromptTokensDetails(cached_tokens=output.num_cached_tokens)
        return Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_tokens,
            total_tokens=num_prompt_tokens + num_tokens,
            prompt_tokens_details=cached if self.has_cached_tokens else UNSET,
        )

    def _head(self) -> dict[str, Any]:
        return {"request_id": self.label, "created": self.created, "model": self.model}

    def _chunk(self, choices: list[Any], usage: Usage | UnsetType) -> TokensChunk | TextChunk:
        kind = TextChunk if self.mode == "text" else TokensChunk
        return kind(**self._head(), choices=choices, usage=usage)

    def _choice(self, answer: CompletionOutput, num_tokens: int) -> TokensChoice | TextChoice:
        versions = [WeightVersionSpan(version=_WEIGHTS, start=0, end=num_tokens)]
        shared: dict[str, Any] = {
            "index": answer.index,
            "token_ids": answer.token_ids,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "weight_versions": versions if answer.is_finished and num_tokens else None,
        }
        rows = answer.logprobs
        if self.mode == "text":
            logprobs = None if rows is None else self.logprobs.chat(rows)
            return TextChoice(**shared, text=answer.text, logprobs=logprobs)
        return TokensChoice(**shared, logprobs=None if rows is None else self.logprobs.ids(rows))


async def write_events(
    outputs: AsyncGenerator[RequestOutput, None], shape: TokensShape
) -> AsyncGenerator[bytes, None]:
    """A chunk for every delta of an answer, the usage if wanted, the end."""
    num_tokens: Counter[int] = Counter()
    last: RequestOutput | None = None
    async with aclosing(outputs):
        async for output in outputs:
            if not output.outputs:
                yield data_event(shape.lent(output))
            for answer in output.outputs:
                num_tokens[answer.index] += len(answer.token_ids)
                write = partial(shape.chunk, answer, output, num_tokens[answer.index])
                chunk = await write_scores(num_scores(answer.logprobs), write)
                if last is None and shape.has_prompt:
                    chunk = replace(chunk, prompt_token_ids=output.prompt_token_ids)
                last = output
                yield data_event(chunk)
    if shape.has_usage and last is not None:
        yield data_event(shape.end(last, num_tokens.total()))
    yield DONE
