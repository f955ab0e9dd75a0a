"""`AnswerOutput`: the tokens of one answer, with their text and their logprobs if the request asks for them."""

from weft.core.values.kv_transfer import GivenAnswer
from weft.core.values.types import CompletionOutput, FinishReason, Request, SequenceOutput
from weft.text.outputs.answer_text import AnswerText
from weft.text.outputs.token_scores import AnswerScores
from weft.text.tokenizer import Tokenizer


class AnswerOutput:
    """The output of one of the `n` answers: all tokens so far, and how many of them were emitted.

    `scores` is None if the request asks for no logprobs. Without a tokenizer, the answer has no text.
    """

    finish_reason: FinishReason | None = None
    scores: AnswerScores | None = None
    num_emitted_tokens = 0
    num_draft_tokens = 0
    num_accepted_tokens = 0
    _stop_reason: int | str | None = None
    _text: AnswerText | None = None
    _has_emitted_end = False

    def __init__(
        self, index: int, request: Request, tokenizer: Tokenizer | None, *, ends_at_stops: bool
    ) -> None:
        self.index = index
        self._stream_interval = request.params.stream_interval
        self._token_ids: list[int] = []
        if tokenizer is not None:
            ids = self._token_ids
            self._text = AnswerText(request, tokenizer, ids, ends_at_stops=ends_at_stops)
        if request.params.logprobs is not None:
            self.scores = AnswerScores(request, tokenizer, self._token_ids)

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
        interval = self._stream_interval
        if interval is None or self.finish_reason is not None or not self.num_emitted_tokens:
            return (
                num_new > 0
                or (self._text is not None and self._text.has_new)
                or (self.finish_reason is not None and not self._has_emitted_end)
            )
        return num_new >= interval

    def push(self, output: SequenceOutput) -> bool:
        """Adds the new part; returns True at a stop string."""
        if output.logprobs and self.scores is not None:
            self.scores.push(output.logprobs)
        stop = None
        if self._text is not None:
            stop = self._text.push(output)
        else:
            self._token_ids += output.token_ids
        if stop is not None:
            self.finish(FinishReason.STOP, stop)
        elif output.finish_reason is not None:
            self.finish(output.finish_reason, output.stop_reason)
        return stop is not None

    def finish(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        """Ends the answer, and its text."""
        self.finish_reason = reason
        self._stop_reason = stop_reason
        if self._text is not None:
            self._text.finish()

    def output(self, *, is_whole: bool = False) -> CompletionOutput:
        """Returns the part that is new since the last output, or everything so far."""
        text = "" if self._text is None else self._text.take(is_whole=is_whole)
        first_token = 0 if is_whole else self.num_emitted_tokens
        self.num_emitted_tokens = len(self._token_ids)
        is_last = self._has_emitted_end = self.finish_reason is not None
        scores = self.scores
        logprobs = None if scores is None else scores.since(first_token, is_last=is_last)
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=self._token_ids[first_token:],
            cumulative_logprob=None if scores is None else scores.cumulative,
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )
