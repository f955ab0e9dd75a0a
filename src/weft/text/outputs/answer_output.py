"""`AnswerOutput`: the tokens of one answer as text, up to its stop string, with their logprobs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weft.core.aio.scores import MANY_SCORES
from weft.core.values.kv_transfer import GivenAnswer
from weft.core.values.logprobs import FlatLogprobs, num_scores
from weft.core.values.types import (
    CompletionOutput,
    FinishReason,
    Logprob,
    LogprobRow,
    OutputKind,
    PositionLogprobs,
    Request,
    SequenceOutput,
)
from weft.text.detokenizer import Detokenizer
from weft.text.outputs.stops import StopMatcher
from weft.text.tokenizer import Tokenizer

# Tokens become text when an output is emitted, many at once; if no output is due, after this many tokens.
_MAX_UNREAD = 256
# Number of earlier tokens whose text may complete a character together with a token.
REPAIR_TOKENS = 4


class AnswerOutput:
    """The output of one of the `n` answers: all tokens so far, and how many of them were emitted.

    Token ids become text, and logprob rows become logprobs, only when an output is emitted, for many tokens at once. If
    the request has stop strings, token ids become text as soon as they arrive.
    """

    def __init__(
        self, index: int, request: Request, tokenizer: Tokenizer | None, *, ends_at_stops: bool
    ) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self._params = params = request.params
        self._tokenizer = tokenizer
        self._prompt_tail = request.prompt_token_ids[-REPAIR_TOKENS:]
        self._detokenizer: Detokenizer | None = None
        if tokenizer is not None:
            self._detokenizer = tokenizer.detokenizer(
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
                prompt_token_ids=request.prompt_token_ids,
            )
        self._matcher: StopMatcher | None = None
        if params.stop:
            is_included = params.include_stop_str_in_output
            self._matcher = StopMatcher(params.stop_strings, is_included=is_included)
        self._ends_at_stops = ends_at_stops
        self._is_cut = False  # a stop string was found: no more text is emitted
        self._stop_ids = {*request.eos_token_ids, *(params.stop_token_ids or ())}
        self._stop_reason: int | str | None = None
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._num_read = 0  # number of tokens that are in the texts
        self._has_silent_end = False  # True if the last token has no text
        self._rows: list[LogprobRow] = []  # logprobs of the last tokens, not converted yet
        self._no_logprobs: Callable[[], list[Any] | FlatLogprobs]
        self._no_logprobs = FlatLogprobs if params.flat_logprobs else list
        # For deltas, those not emitted yet.
        self._logprobs: list[Any] | FlatLogprobs = self._no_logprobs()
        self._num_scored = 0  # number of tokens whose logprobs were converted
        self._logprob_sum = 0.0
        self._num_emitted_texts = 0
        self.num_emitted_tokens = 0
        self._has_emitted_end = False
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Tokens so far, emitted or not."""
        return len(self._token_ids)

    @property
    def given(self) -> GivenAnswer | None:
        """The answer so far; None if it has ended."""
        counts = (self.num_draft_tokens, self.num_accepted_tokens)
        return None if self.finish_reason else GivenAnswer(list(self._token_ids), *counts)

    @property
    def is_due(self) -> bool:
        """True if there is something to emit now: the first token, the last, or `stream_interval` tokens."""
        num_new = len(self._token_ids) - self.num_emitted_tokens
        interval = self._params.stream_interval
        if interval is None or self.finish_reason is not None or not self.num_emitted_tokens:
            return (
                num_new > 0
                or self._num_emitted_texts < len(self._texts)
                or (self.finish_reason is not None and not self._has_emitted_end)
            )
        return num_new >= interval

    @property
    def num_new_scores(self) -> int:
        """Approximate number of logprobs in the next delta, converted or not."""
        return num_scores(self._rows) + num_scores(self._logprobs)

    def push(self, output: SequenceOutput) -> bool:
        """Adds the new part; returns True at a stop string."""
        if output.logprobs:
            self._rows += output.logprobs
        if output.finish_reason is not None:
            self._has_silent_end = self._ends_silently(output)
        if self._matcher is not None:
            stop = self._search(self._matcher, output.token_ids)
            if stop is not None:
                self.finish(FinishReason.STOP, stop)
                return True
        else:
            self._token_ids += output.token_ids
            if len(self._token_ids) - self._num_read >= _MAX_UNREAD:
                self._read()
        if output.finish_reason is not None:
            self.finish(output.finish_reason, output.stop_reason)
        return False

    def finish(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        """Ends the answer; text that was held back is emitted, unless a stop string cut it off."""
        self.finish_reason = reason
        self._stop_reason = stop_reason
        if not self._is_cut:
            self._read()
            if self._matcher is not None:
                self._show(self._matcher.flush())
            if self._detokenizer is not None:
                self._show(self._detokenizer.flush())

    def output(self, *, is_whole: bool = False) -> CompletionOutput:
        """Returns the part that is new since the last output, or everything so far."""
        self._read()
        first_text, first_token = self._num_emitted_texts, self.num_emitted_tokens
        if is_whole:
            # Joined now, so that the next complete output does not join all pieces again.
            self._texts = ["".join(self._texts)] if self._texts else []
            first_text = first_token = 0
        self._num_emitted_texts = len(self._texts)
        self.num_emitted_tokens = len(self._token_ids)
        self._has_emitted_end = self.finish_reason is not None
        scored = None if self._params.logprobs is None else self._scored_since(first_token)
        return CompletionOutput(
            index=self.index,
            text="".join(self._texts[first_text:]),
            token_ids=self._token_ids[first_token:],
            cumulative_logprob=None if scored is None else self._logprob_sum,
            logprobs=scored,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )

    def _scored_since(self, first_token: int) -> Sequence[PositionLogprobs]:
        """The new rows: a copy if they are emitted again later, otherwise the list, which the reader may free."""
        while self.read_scores(MANY_SCORES):
            pass
        assert self._num_scored == len(self._token_ids), "a token without log-probabilities"
        scored = self._logprobs
        if self._params.output_kind is OutputKind.DELTA:
            self._logprobs = self._no_logprobs()
            return scored
        return scored if self._has_emitted_end else scored[first_token:]

    def _ends_silently(self, output: SequenceOutput) -> bool:
        """True if the last token is a stop token and is not part of the text.

        A model without an end-of-sequence token stops with the last token of its grammar, which is
        text like any other.
        """
        return (
            output.finish_reason is FinishReason.STOP
            and bool(output.token_ids)
            and output.token_ids[-1] in self._stop_ids
            and not self._params.include_stop_str_in_output
        )

    def _search(self, matcher: StopMatcher, token_ids: Sequence[int]) -> str | None:
        """Takes tokens one by one up to the first stop string, so that one step with many tokens gives the same
        result as many steps.
        """
        num_after = len(self._token_ids) + len(token_ids) - self._has_silent_end
        for token_id in token_ids:
            self._token_ids.append(token_id)
            if self._detokenizer is None or self._is_cut or len(self._token_ids) > num_after:
                continue
            self._num_read = len(self._token_ids)
            text = self._detokenizer.push(token_id)
            if text:
                is_searched = self._num_read > self._params.min_tokens
                found = matcher.push(text, is_searched=is_searched)
                self._show(found.text)
                self._is_cut = found.stop is not None
                if self._is_cut and self._ends_at_stops:
                    return found.stop
        return None

    def _read(self) -> None:
        """Converts the new tokens to text."""
        end = len(self._token_ids) - self._has_silent_end
        if self._num_read < end and self._matcher is None:
            unread = self._token_ids[self._num_read : end]
            self._num_read = end
            if self._detokenizer is not None:
                self._show(self._detokenizer.read(unread))

    def read_scores(self, max_scores: int) -> int:
        """Converts about `max_scores` logprobs, one row per token; returns the number converted."""
        if not self._rows:
            return 0
        first, width = self._num_scored, len(self._rows[0])
        end = min(len(self._token_ids), first + max(1, max_scores // width))
        token_ids = self._prompt_tail + self._token_ids[max(0, first - REPAIR_TOKENS) : end]
        num_before = len(token_ids) - (end - first)
        for position, row in enumerate(self._rows[: end - first], start=num_before):
            before = token_ids[max(0, position - REPAIR_TOKENS) : position]
            self._logprobs.append(logprobs_of(row, before, self._tokenizer))
            self._logprob_sum += row[0][1]
        if end < len(self._token_ids):
            del self._rows[: end - first]
        else:
            self._rows.clear()  # the remaining rows belong to tokens after a stop string
        self._num_scored = end
        return (end - first) * width

    def _show(self, text: str) -> None:
        if text:
            self._texts.append(text)


def logprobs_of(
    row: LogprobRow, before: Sequence[int], tokenizer: Tokenizer | None
) -> PositionLogprobs:
    def entries() -> Iterator[tuple[int, Logprob]]:
        for token_id, logprob, rank in row:
            text = None if tokenizer is None else tokenizer.token_to_text(token_id, before)
            yield token_id, Logprob(logprob, rank, text)

    return dict(entries())
