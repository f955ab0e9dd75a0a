"""`RequestStream`: combines the sequence outputs of one request to `RequestOutput`s of its output kind.

Outputs of the engine and of gRPC are handled alike: text, stop strings, deltas, logprobs.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

from msgspec.structs import replace

from weft.core.aio.failover import given_outputs
from weft.core.aio.scores import MANY_SCORES, write_scores
from weft.core.client import Sink
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
    RequestOutput,
    SequenceOutput,
)
from weft.text.detokenizer import Detokenizer
from weft.text.stops import StopMatcher
from weft.text.tokenizer import Tokenizer

# Tokens become text when an output is emitted, many at once; if no output is due, after this many tokens.
_MAX_UNREAD = 256
# Number of earlier tokens whose text may complete a character together with a token.
_REPAIR_TOKENS = 4


class Due(Enum):
    """When a stream's reader should get the new parts of an output."""

    NOT_YET = "not yet"  # nothing, or too little, to emit
    SOON = "soon"  # further tokens of an answer
    NOW = "now"  # the beginning or the end of an answer


# Looking up an enum member costs as much as a call, and each token needs ten.
NOT_YET, SOON, NOW = Due
_DELTA, _FINAL_ONLY, _ERROR = OutputKind.DELTA, OutputKind.FINAL_ONLY, FinishReason.ERROR


class RequestStream:
    """Collects the sequence outputs of one request and emits `RequestOutput`s, by its output kind.

    Unread deltas are merged, not queued, so a slow reader costs no more memory than the output itself. `due` says when
    the reader should get the parts that are pushed but not emitted. `error` is the engine's error message if an answer
    ended with `FinishReason.ERROR`: the request has failed. `is_finished` is True once every answer has ended; `pop`
    may still return a last output then.
    With `ends_at_stops`, this object ends an answer at its stop string. Without `ends_at_stops`, the remote server
    searches for stop strings too and reports the end with a `finish_reason`; until then only the answer's text has
    ended. Outputs may be sent to `sink` while the reader of the stream waits.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer | None,
        *,
        ends_at_stops: bool = True,
        sink: Sink | None = None,
    ) -> None:
        self._request = request
        self.sink = sink
        self._kind = request.params.output_kind
        self._has_scores = request.params.logprobs is not None
        self._tokenizer = tokenizer if request.params.detokenize else None
        self._answers = [
            _Answer(index, request, self._tokenizer, ends_at_stops=ends_at_stops)
            for index in range(request.params.n)
        ]
        self._num_open = request.params.n
        self.is_finished = False
        self._prompt_rows: list[LogprobRow] | None = None  # None until they are read
        self._prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
        self._num_cached_tokens: int | None = None
        self._has_emitted_prompt = False
        self._kv_transfer_params: dict[str, Any] | None = None
        self._is_lent_ahead = False  # True until the reader has received the transfer parameters
        self._has_emitted_end = False
        self.error: str | None = None
        self.due = NOT_YET
        # True if `pop` left something: all at once would hold the event loop. The reader pops again at once.
        self.has_more = False
        if request.resumption is not None:
            for output in given_outputs(request, request.resumption):
                self.push(output)
            self.pop()  # the reader has received these from the server that was lost
            self._num_cached_tokens = None

    def progress(self, index: int) -> tuple[int, FinishReason | None]:
        """Returns the number of tokens of an answer, and its finish reason."""
        answer = self._answers[index]
        return answer.num_tokens, answer.finish_reason

    def push(self, output: SequenceOutput) -> bool:
        """Adds the new part of one answer.

        Returns True if a stop string has just ended it: the engine does not know of stop strings, so the caller must
        make it end that answer. Later outputs of an ended answer are dropped, because they were on their way already.
        """
        if self._num_cached_tokens is None:
            self._num_cached_tokens = output.num_cached_tokens
            if output.prompt_token_ids is not None:
                self._request = replace(self._request, prompt_token_ids=output.prompt_token_ids)
        if output.prompt_logprobs is not None and self._prompt_logprobs is None:
            self._prompt_rows = self._prompt_rows or []
            # The server sends prompt logprobs with every answer.
            if not self._is_prompt_scored(self._prompt_rows):
                self._prompt_rows += output.prompt_logprobs
        answer = self._answers[output.index]
        if answer.finish_reason is not None:
            return False
        self._kv_transfer_params = output.kv_transfer_params
        answer.num_draft_tokens = output.num_draft_tokens
        answer.num_accepted_tokens = output.num_accepted_tokens
        if output.finish_reason is _ERROR:
            self.error = output.error or "the engine failed to answer this request"
        is_matched = answer.push(output)
        if is_matched or output.finish_reason is not None:
            self._num_open -= 1
            self.is_finished = not self._num_open
        if self.due is not NOW:
            self.due = self._due_after(answer)
        if output.kv_transfer_params is not None and self._kind is _DELTA:
            self._is_lent_ahead, self.due = not self.is_finished, NOW
        return is_matched and output.finish_reason is None

    def _is_prompt_scored(self, rows: Sequence[LogprobRow]) -> bool:
        return len(rows) >= len(self._request.prompt_token_ids) - 1

    async def read_scores_soon(self) -> None:
        """Does the slow part of `pop` in advance, on a thread and in pieces: for a long prompt or many answers it
        takes half a second.
        """
        if self._prompt_rows:
            num_scores = len(self._prompt_rows) * len(self._prompt_rows[-1])
            await write_scores(num_scores, self._read_prompt)
        if self.due is NOT_YET and not self.is_finished:
            return
        room = MANY_SCORES
        for answer in self._answers:
            while num_read := answer.read_scores(room):
                room -= num_read
                if room <= 0:
                    await asyncio.sleep(0)
                    room = MANY_SCORES

    def _read_prompt(self) -> None:
        """Converts the prompt's logprob rows to logprobs with token texts, once all positions are scored."""
        rows, token_ids = self._prompt_rows, self._request.prompt_token_ids
        if rows is None or not self._is_prompt_scored(rows):
            return
        scored: list[Any] | FlatLogprobs = (
            FlatLogprobs() if self._request.params.flat_logprobs else []
        )
        scored.append(None)
        for position, row in enumerate(rows, start=1):
            before = token_ids[max(0, position - _REPAIR_TOKENS) : position]
            scored.append(_logprobs_of(row, before, self._tokenizer))
        self._prompt_logprobs, self._prompt_rows = scored, None

    def hand_over(self) -> list[GivenAnswer | None]:
        """Returns the answers so far, for the engine that continues them; incomplete prompt logprobs start anew."""
        if not self._answers[0].num_tokens:
            self._prompt_rows = None
        return [answer.given for answer in self._answers]

    def abort(self) -> None:
        """End every open answer with "abort"; text held back for stop strings is shown."""
        for answer in self._answers:
            if answer.finish_reason is None:
                answer.finish(FinishReason.ABORT, None)
        self._num_open = 0
        self.is_finished = True

    def pop(self) -> RequestOutput | None:
        """Returns the new parts since the last `pop` as one output; None if there is nothing to emit yet."""
        self.due, self.has_more = NOT_YET, False
        if self._kind is _DELTA:
            outputs = self._deltas()
        elif self._is_whole_due():
            outputs = [answer.output(is_whole=True) for answer in self._answers]
        else:
            outputs = []
        if not (outputs or self._is_lent_ahead):
            return None
        self._is_lent_ahead = False
        self._has_emitted_end = self.is_finished and not self.has_more
        return self._output(outputs)

    def _deltas(self) -> list[CompletionOutput]:
        """The new parts of the answers, up to about `MANY_SCORES` logprobs, and at least one answer.

        The logprobs of one output are read, written and freed together; the rest follows in the next output.
        """
        deltas: list[CompletionOutput] = []
        room = MANY_SCORES
        for answer in self._answers:
            if not answer.is_due:
                continue
            if self._has_scores:
                room -= answer.num_new_scores
                if room < 0 and deltas:
                    self.due, self.has_more = SOON, True
                    break
            deltas.append(answer.output())
        return deltas

    def _is_whole_due(self) -> bool:
        if self._kind is _FINAL_ONLY:
            return self.is_finished and not self._has_emitted_end
        return any(answer.is_due for answer in self._answers)

    def _due_after(self, answer: "_Answer") -> Due:
        """Returns when the stream should emit, after a new part of `answer` has arrived."""
        if self._kind is _FINAL_ONLY:
            return NOW if self.is_finished else NOT_YET
        if not answer.is_due:
            return self.due
        return SOON if answer.num_emitted_tokens and answer.finish_reason is None else NOW

    def _prompt_scores(self) -> Sequence[PositionLogprobs | None] | None:
        """Returns the logprobs of the prompt, as soon as all are known; a stream of deltas gets them once."""
        if self._prompt_rows is not None:
            self._read_prompt()
        is_repeat = self._kind is _DELTA and self._has_emitted_prompt
        self._has_emitted_prompt = self._has_emitted_prompt or self._prompt_logprobs is not None
        return None if is_repeat else self._prompt_logprobs

    def _output(self, outputs: list[CompletionOutput]) -> RequestOutput:
        has_prompt_scores = self._request.params.prompt_logprobs is not None
        return RequestOutput(
            request_id=self._request.request_id,
            prompt=self._request.prompt,
            prompt_token_ids=self._request.prompt_token_ids,
            outputs=outputs,
            is_finished=self._has_emitted_end,
            prompt_logprobs=self._prompt_scores() if has_prompt_scores else None,
            num_cached_tokens=self._num_cached_tokens or 0,
            kv_transfer_params=self._kv_transfer_params,
        )


class _Answer:
    """One of the `n` answers: all tokens so far, and how many of them were emitted.

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
        self._prompt_tail = request.prompt_token_ids[-_REPAIR_TOKENS:]
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
        if self._params.output_kind is _DELTA:
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
        token_ids = self._prompt_tail + self._token_ids[max(0, first - _REPAIR_TOKENS) : end]
        num_before = len(token_ids) - (end - first)
        for position, row in enumerate(self._rows[: end - first], start=num_before):
            before = token_ids[max(0, position - _REPAIR_TOKENS) : position]
            self._logprobs.append(_logprobs_of(row, before, self._tokenizer))
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


def _logprobs_of(
    row: LogprobRow, before: Sequence[int], tokenizer: Tokenizer | None
) -> PositionLogprobs:
    def entries() -> Iterator[tuple[int, Logprob]]:
        for token_id, logprob, rank in row:
            text = None if tokenizer is None else tokenizer.token_to_text(token_id, before)
            yield token_id, Logprob(logprob, rank, text)

    return dict(entries())
