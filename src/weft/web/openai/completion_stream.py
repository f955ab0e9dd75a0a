"""The choices of a completion: the engine's outputs in OpenAI's words, streamed or not."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from functools import partial

from weft.core.aio.scores import write_scores
from weft.core.values.logprobs import num_scores_of
from weft.core.values.types import CompletionOutput, PositionLogprobs, RequestOutput
from weft.schema.completion import CompletionChunk, CompletionChunkChoice
from weft.schema.usage import CompletionLogprobs, Usage
from weft.web.http.sse import DONE, EventOfText, data_event
from weft.web.inference.call import AnswerDetails, Heading, to_usage
from weft.web.inference.logprobs import LogprobWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionShape:
    """Form of the answers, streamed or not.

    `echoes` are the texts that precede the answers to each prompt; None if the request does not set `echo`. With
    `is_prompt_only`, answers contain no generated token, although the engine always generates at least one.
    """

    head: Heading
    details: AnswerDetails
    num_answers: int
    echoes: list[str] | None
    is_prompt_only: bool
    is_streamed: bool
    logprobs: LogprobWriter | None


class PromptWriter:
    """Writes the answers to one prompt, numbered from `first_index`."""

    def __init__(self, position: int, shape: CompletionShape) -> None:
        self._shape = shape
        self._first_index = position * shape.num_answers
        self._echo = None if shape.echoes is None else shape.echoes[position]
        self._offsets = [0] * shape.num_answers
        self._is_begun = [False] * shape.num_answers
        details = shape.details
        self._has_plain = shape.logprobs is None and not (
            shape.is_prompt_only or details.has_token_ids or details.has_running_usage
        )
        self._plain_by_index: dict[int, EventOfText] = {}
        self.num_tokens = [0] * shape.num_answers
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.prompt_logprobs: Sequence[PositionLogprobs | None] | None = None

    def choices(self, output: RequestOutput) -> Iterator[CompletionChunkChoice]:
        """The choice of every answer that an output has a delta of."""
        self.num_prompt_tokens = len(output.prompt_token_ids)
        self.num_cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        for answer in output.outputs:
            yield self._choice(answer, output.prompt_token_ids)

    def events(self, output: RequestOutput) -> list[bytes]:
        """Returns the events of an output, encoded."""
        plain = self._plain_event(output)
        if plain is not None:
            return [plain]
        return [data_event(self.chunk(choice)) for choice in self.choices(output)]

    def _plain_event(self, output: RequestOutput) -> bytes | None:
        """The encoded event of a delta that is only text, the usual case; None for others."""
        if not self._has_plain or len(output.outputs) != 1:
            return None
        answer = output.outputs[0]
        index = answer.index
        if answer.finish_reason is not None or not self._is_begun[index]:
            return None
        self.num_tokens[index] += len(answer.token_ids)
        plain = self._plain_by_index.get(index)
        if plain is None:
            plain = EventOfText(partial(self._text_chunk, index))
            self._plain_by_index[index] = plain
        return plain.of(answer.text)

    def chunk(self, choice: CompletionChunkChoice) -> CompletionChunk:
        """A chunk with one choice."""
        head = self._shape.head
        return CompletionChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[choice],
            usage=self.usage(choice.index) if self._shape.details.has_running_usage else None,
        )

    def _text_chunk(self, answer: int, text: str) -> CompletionChunk:
        return self.chunk(
            CompletionChunkChoice(
                index=self._first_index + answer,
                text=text,
                logprobs=None,
                finish_reason=None,
                stop_reason=None,
                token_ids=None,
                prompt_token_ids=None,
            )
        )

    def usage(self, index: int) -> Usage:
        """Usage of one answer so far."""
        answer = index - self._first_index
        return to_usage(
            self._shape.details,
            num_prompt_tokens=self.num_prompt_tokens,
            num_completion_tokens=self.num_tokens[answer],
        )

    def _choice(
        self, answer: CompletionOutput, prompt_token_ids: list[int]
    ) -> CompletionChunkChoice:
        shape = self._shape
        is_first = not self._is_begun[answer.index]
        self._is_begun[answer.index] = True
        is_hidden = shape.is_prompt_only
        token_ids = [] if is_hidden else answer.token_ids
        self.num_tokens[answer.index] += len(token_ids)
        has_ids = shape.details.has_token_ids
        # A stream that echoes the prompt begins with its ids, even if they were not requested.
        has_prompt_ids = has_ids or (shape.is_streamed and self._echo is not None)
        # If ids are requested, the prompt is sent as ids, not as text.
        before = self._echo or "" if is_first and not has_ids else ""
        ended = None if answer.finish_reason is None else answer.finish_reason.value
        return CompletionChunkChoice(
            index=self._first_index + answer.index,
            text=before if is_hidden else before + answer.text,
            logprobs=self._logprobs(answer, prompt_token_ids if is_first else []),
            finish_reason="length" if is_hidden and ended else ended,
            stop_reason=None if is_hidden else answer.stop_reason,
            token_ids=token_ids if has_ids else None,
            prompt_token_ids=prompt_token_ids if has_prompt_ids and is_first else None,
        )

    def _logprobs(
        self, answer: CompletionOutput, prompt_token_ids: list[int]
    ) -> CompletionLogprobs | None:
        """Logprobs of the delta; those of an echoed prompt come before the first."""
        writer = self._shape.logprobs
        if writer is None:
            return None
        token_ids: list[int] = []
        rows: list[PositionLogprobs | None] = []
        if self._echo is not None and prompt_token_ids:
            token_ids += prompt_token_ids
            rows += self.prompt_logprobs or ()
        if not self._shape.is_prompt_only:
            token_ids += answer.token_ids
            rows += answer.logprobs or ()
        written, offset = writer.completion(token_ids, rows, self._offsets[answer.index])
        self._offsets[answer.index] = offset
        return written


async def completion_events(
    outputs: AsyncGenerator[tuple[int, RequestOutput], None],
    writers: list[PromptWriter],
    shape: CompletionShape,
) -> AsyncGenerator[bytes, None]:
    """The whole stream, `[DONE]` included."""
    async with aclosing(outputs):
        async for position, output in outputs:
            write = partial(writers[position].events, output)
            for event in await write_scores(num_scores_of(output), write):
                yield event
    if shape.details.has_usage:
        usage = total_usage(writers, shape)
        yield data_event(CompletionChunk(**asdict(shape.head), choices=[], usage=usage))
    yield DONE


def total_usage(writers: list[PromptWriter], shape: CompletionShape) -> Usage:
    """Usage of all prompts and answers."""
    return to_usage(
        shape.details,
        num_prompt_tokens=sum(writer.num_prompt_tokens for writer in writers),
        num_completion_tokens=sum(sum(writer.num_tokens) for writer in writers),
        num_cached_tokens=sum(writer.num_cached_tokens for writer in writers),
    )
