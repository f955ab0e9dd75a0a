"""The front half of one request: what the engine says of it, made into what the caller asked to hear."""

from collections.abc import Iterator, Sequence
from typing import assert_never

from weft.core.logprobs import new_logprobs
from weft.core.types import (
    CompletionOutput,
    FinishReason,
    Logprob,
    OutputKind,
    PositionLogprobs,
    Request,
    RequestOutput,
    SamplingParams,
)
from weft.engine.messages import LogprobRow, SequenceOutput
from weft.text.detokenizer import Detokenizer
from weft.text.stops import StopMatcher
from weft.text.tokenizer import Tokenizer

_NO_TOKENS: list[int] = []
# Tokens before one whose text may complete a character with it.
_REPAIR_TOKENS = 4


class RequestStream:
    """Collects what the engine says of one request and makes `RequestOutput`s of it, by its output kind.

    Memory is that of the output itself, however far the consumer lags: news is merged, not queued.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer | None) -> None:
        self._request = request
        self._kind = request.params.output_kind
        self._tokenizer = tokenizer if request.params.detokenize else None
        self._answers = [
            _Answer(index, request, self._tokenizer) for index in range(request.params.n)
        ]
        self._prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
        self._num_cached_tokens: int | None = None
        self._has_told_prompt = False
        self._has_told_end = False
        self._error: str | None = None

    @property
    def error(self) -> str | None:
        """The engine's sentence when an answer ended with `FinishReason.ERROR`: the request has failed."""
        return self._error

    @property
    def is_finished(self) -> bool:
        """Whether every answer has ended; `pop` may still have news."""
        return all(answer.finish_reason is not None for answer in self._answers)

    def progress(self, index: int) -> tuple[int, FinishReason | None]:
        """How many tokens an answer has, and why it has ended."""
        answer = self._answers[index]
        return answer.num_tokens, answer.finish_reason

    def push(self, output: SequenceOutput) -> bool:
        """Take one step's news of one answer. True when a stop string just ended it.

        The engine does not know about stop strings, so after True the caller tells it to end that
        answer. News of an answer that has ended is dropped: it was on its way already.
        """
        if self._num_cached_tokens is None:
            self._num_cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs is not None and self._prompt_logprobs is None:
            self._prompt_logprobs = self._prompt_rows(output.prompt_logprobs)
        answer = self._answers[output.index]
        if answer.finish_reason is not None:
            return False
        answer.num_draft_tokens = output.num_draft_tokens
        answer.num_accepted_tokens = output.num_accepted_tokens
        if output.finish_reason is FinishReason.ERROR:
            self._error = output.error or "the engine failed to answer this request"
        is_matched = answer.push(output)
        return is_matched and output.finish_reason is None

    def abort(self) -> None:
        """End every open answer with "abort"; text held back for stop strings is shown."""
        for answer in self._answers:
            if answer.finish_reason is None:
                answer.finish(FinishReason.ABORT, None)

    def pop(self) -> RequestOutput | None:
        """Everything new since the last `pop`, in one output; None when there is nothing to say yet."""
        match self._kind:
            case OutputKind.DELTA:
                outputs = [answer.delta() for answer in self._answers if answer.is_due]
            case OutputKind.CUMULATIVE:
                is_due = any(answer.is_due for answer in self._answers)
                outputs = [answer.whole() for answer in self._answers] if is_due else []
            case OutputKind.FINAL_ONLY:
                is_due = self.is_finished and not self._has_told_end
                outputs = [answer.whole() for answer in self._answers] if is_due else []
            case _:
                assert_never(self._kind)
        if not outputs:
            return None
        self._has_told_end = self.is_finished
        return self._output(outputs)

    def _output(self, outputs: list[CompletionOutput]) -> RequestOutput:
        is_repeat = self._kind is OutputKind.DELTA and self._has_told_prompt
        self._has_told_prompt = self._has_told_prompt or self._prompt_logprobs is not None
        return RequestOutput(
            request_id=self._request.request_id,
            prompt=self._request.prompt,
            prompt_token_ids=self._request.prompt_token_ids,
            outputs=outputs,
            is_finished=self._has_told_end,
            prompt_logprobs=None if is_repeat else self._prompt_logprobs,
            num_cached_tokens=self._num_cached_tokens or 0,
        )

    def _prompt_rows(self, rows: Sequence[LogprobRow]) -> Sequence[PositionLogprobs | None]:
        token_ids = self._request.prompt_token_ids
        scored = new_logprobs(is_flat=self._request.params.flat_logprobs)
        scored.append(None)
        for position, row in enumerate(rows, start=1):
            before = token_ids[max(0, position - _REPAIR_TOKENS) : position]
            scored.append(_logprobs_of(row, before, self._tokenizer))
        return scored


class _Answer:
    """One of the n answers: all of it so far, and how much of it has been told."""

    __slots__ = (
        "_detokenizer",
        "_has_told_end",
        "_logprob_sum",
        "_logprobs",
        "_matcher",
        "_num_told_texts",
        "_num_told_tokens",
        "_params",
        "_prompt_tail",
        "_stop_ids",
        "_stop_reason",
        "_texts",
        "_token_ids",
        "_tokenizer",
        "finish_reason",
        "index",
        "num_accepted_tokens",
        "num_draft_tokens",
    )

    def __init__(self, index: int, request: Request, tokenizer: Tokenizer | None) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self._params: SamplingParams = request.params
        self._tokenizer = tokenizer
        self._prompt_tail = request.prompt_token_ids[-_REPAIR_TOKENS:]
        self._detokenizer = _detokenizer(request, tokenizer)
        self._matcher = StopMatcher(
            request.params.stop_strings,
            is_included=request.params.include_stop_str_in_output,
        )
        self._stop_ids = {*request.eos_token_ids, *(request.params.stop_token_ids or ())}
        self._stop_reason: int | str | None = None
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs = new_logprobs(is_flat=request.params.flat_logprobs)
        self._logprob_sum = 0.0
        self._num_told_texts = 0
        self._num_told_tokens = 0
        self._has_told_end = False
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Tokens so far, told or not."""
        return len(self._token_ids)

    @property
    def has_news(self) -> bool:
        """Whether there is anything that was not told yet."""
        return (
            self._num_told_tokens < len(self._token_ids)
            or self._num_told_texts < len(self._texts)
            or (self.finish_reason is not None and not self._has_told_end)
        )

    @property
    def is_due(self) -> bool:
        """Whether there is news to tell now: the first, the last, or `stream_interval` tokens of it."""
        interval = self._params.stream_interval
        if interval is None or self.finish_reason is not None or not self._num_told_tokens:
            return self.has_news
        return len(self._token_ids) - self._num_told_tokens >= interval

    def push(self, output: SequenceOutput) -> bool:
        """Take the tokens one by one, so that a step of many reads like many steps; True at a stop string."""
        for position, token_id in enumerate(output.token_ids):
            self._take(token_id, output.logprobs[position] if output.logprobs else None)
            # A model without an end-of-sequence token stops with the last token of its grammar,
            # which is text like any other.
            is_stop_token = (
                output.finish_reason is FinishReason.STOP
                and position == len(output.token_ids) - 1
                and token_id in self._stop_ids
            )
            stop = self._read(token_id, is_stop_token)
            if stop is not None:
                self.finish(FinishReason.STOP, stop)
                return True
        if output.finish_reason is not None:
            self.finish(output.finish_reason, output.stop_reason)
        return False

    def finish(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        """End the answer; unless a stop string cut it, what was held back is shown."""
        self.finish_reason = reason
        self._stop_reason = stop_reason
        if not isinstance(stop_reason, str):
            self._show(self._matcher.flush())
            if self._detokenizer is not None:
                self._show(self._detokenizer.flush())

    def delta(self) -> CompletionOutput:
        """What is new since the last output."""
        return self._tell(self._num_told_texts, self._num_told_tokens)

    def whole(self) -> CompletionOutput:
        """Everything so far."""
        # One string from here on, so that the next whole output does not join every piece again.
        self._texts = ["".join(self._texts)] if self._texts else []
        return self._tell(0, 0)

    def _tell(self, first_text: int, first_token: int) -> CompletionOutput:
        self._num_told_texts = len(self._texts)
        self._num_told_tokens = len(self._token_ids)
        self._has_told_end = self.finish_reason is not None
        has_logprobs = self._params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text="".join(self._texts[first_text:]),
            token_ids=self._token_ids[first_token:],
            cumulative_logprob=self._logprob_sum if has_logprobs else None,
            logprobs=self._logprobs[first_token:] if has_logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )

    def _take(self, token_id: int, row: LogprobRow | None) -> None:
        if self._params.logprobs is not None:
            assert row is not None, "a token without the log-probabilities that were asked for"
            before = (self._prompt_tail + self._token_ids[-_REPAIR_TOKENS:])[-_REPAIR_TOKENS:]
            self._logprobs.append(_logprobs_of(row, before, self._tokenizer))
            self._logprob_sum += row[0][1]
        self._token_ids.append(token_id)

    def _read(self, token_id: int, is_stop_token: bool) -> str | None:
        """Add the token's text; the stop string that it completes, if any."""
        is_hidden = is_stop_token and not self._params.include_stop_str_in_output
        if self._detokenizer is None or is_hidden:
            return None
        text = self._detokenizer.push(token_id)
        if not text:
            return None
        is_searched = len(self._token_ids) > self._params.min_tokens
        found = self._matcher.push(text, is_searched=is_searched)
        self._show(found.text)
        return found.stop

    def _show(self, text: str) -> None:
        if text:
            self._texts.append(text)


def _detokenizer(request: Request, tokenizer: Tokenizer | None) -> Detokenizer | None:
    if tokenizer is None:
        return None
    return tokenizer.detokenizer(
        skip_special_tokens=request.params.skip_special_tokens,
        spaces_between_special_tokens=request.params.spaces_between_special_tokens,
        prompt_token_ids=request.prompt_token_ids,
    )


def _logprobs_of(
    row: LogprobRow, before: Sequence[int], tokenizer: Tokenizer | None
) -> PositionLogprobs:
    def entries() -> Iterator[tuple[int, Logprob]]:
        for token_id, logprob, rank in row:
            text = None if tokenizer is None else tokenizer.token_to_text(token_id, before)
            yield token_id, Logprob(logprob, rank, text)

    return dict(entries())
