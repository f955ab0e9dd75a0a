"""`AnswerScores` and `PromptScores`: the logprobs of tokens that a request asks for, with their texts."""

from collections.abc import Iterator, Sequence
from typing import Any

from weft.core.aio.scores import MANY_SCORES
from weft.core.values.logprobs import FlatLogprobs, num_scores
from weft.core.values.types import (
    Logprob,
    LogprobRow,
    OutputKind,
    PositionLogprobs,
    Request,
    SamplingParams,
)
from weft.text.tokenizer import Tokenizer

# Number of earlier tokens whose text may complete a character together with a token.
_REPAIR_TOKENS = 4


class AnswerScores:
    """Logprobs of one answer. Rows are converted when an output is emitted, many at once.

    `token_ids` is the list of the answer's tokens so far, to which the answer appends.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer | None, token_ids: list[int]) -> None:
        self._params = request.params
        self._prompt_tail = request.prompt_token_ids[-_REPAIR_TOKENS:]
        self._tokenizer = tokenizer
        self._token_ids = token_ids
        self._rows: list[LogprobRow] = []  # of the last tokens, not converted yet
        self._logprobs = _empty(self._params)  # of a stream of deltas: those not emitted yet
        self._num_read = 0  # number of tokens whose logprobs were converted
        self.cumulative = 0.0

    @property
    def num_new(self) -> int:
        """Approximate number of logprobs in the next delta, converted or not."""
        return num_scores(self._rows) + num_scores(self._logprobs)

    def push(self, rows: list[LogprobRow]) -> None:
        """Adds the rows of the next tokens."""
        self._rows += rows

    def read(self, max_scores: int) -> int:
        """Converts about `max_scores` logprobs, one row per token; returns the number converted."""
        if not self._rows:
            return 0
        first, width = self._num_read, len(self._rows[0])
        end = min(len(self._token_ids), first + max(1, max_scores // width))
        token_ids = self._prompt_tail + self._token_ids[max(0, first - _REPAIR_TOKENS) : end]
        num_before = len(token_ids) - (end - first)
        for position, row in enumerate(self._rows[: end - first], start=num_before):
            before = token_ids[max(0, position - _REPAIR_TOKENS) : position]
            self._logprobs.append(_logprobs_of(row, before, self._tokenizer))
            self.cumulative += row[0][1]
        if end < len(self._token_ids):
            del self._rows[: end - first]
        else:
            self._rows.clear()  # the remaining rows belong to tokens after a stop string
        self._num_read = end
        return (end - first) * width

    def since(self, first_token: int, *, is_last: bool) -> Sequence[PositionLogprobs]:
        """Returns the new logprobs: a copy if they are emitted again later, otherwise the list, which the reader may
        free.
        """
        while self.read(MANY_SCORES):
            pass
        assert self._num_read == len(self._token_ids), "a token without log-probabilities"
        scored = self._logprobs
        if self._params.output_kind is OutputKind.DELTA:
            self._logprobs = _empty(self._params)
            return scored
        return scored if is_last else scored[first_token:]


class PromptScores:
    """Logprobs of a prompt, whose rows arrive in parts. `token_ids` are the prompt's."""

    def __init__(self, request: Request, tokenizer: Tokenizer | None) -> None:
        self._params = request.params
        self._tokenizer = tokenizer
        self.token_ids = request.prompt_token_ids
        # None before the first part, and after the conversion.
        self._rows: list[LogprobRow] | None = None
        self._logprobs: Sequence[PositionLogprobs | None] | None = None
        self._is_emitted = False

    @property
    def num_unread(self) -> int:
        """Approximate number of logprobs that are not converted yet."""
        return num_scores(self._rows)

    def push(self, rows: list[LogprobRow]) -> None:
        """Adds rows. Rows after the last position are dropped, because a server sends the rows with every answer."""
        if self._logprobs is None:
            self._rows = self._rows or []
            if not self._is_complete(self._rows):
                self._rows += rows

    def restart(self) -> None:
        """Drops the rows of an incomplete prompt, because another engine sends all of them again."""
        self._rows = None

    def read(self) -> None:
        """Converts the rows to logprobs with token texts, once all positions are scored."""
        if self._rows is None or not self._is_complete(self._rows):
            return
        scored = _empty(self._params)
        scored.append(None)
        for position, row in enumerate(self._rows, start=1):
            before = self.token_ids[max(0, position - _REPAIR_TOKENS) : position]
            scored.append(_logprobs_of(row, before, self._tokenizer))
        self._logprobs, self._rows = scored, None

    def _is_complete(self, rows: Sequence[LogprobRow]) -> bool:
        return len(rows) >= len(self.token_ids) - 1

    def take(self) -> Sequence[PositionLogprobs | None] | None:
        """Returns the logprobs, as soon as all are known; a stream of deltas gets them once."""
        self.read()
        is_repeat = self._is_emitted and self._params.output_kind is OutputKind.DELTA
        self._is_emitted = self._logprobs is not None
        return None if is_repeat else self._logprobs


def _empty(params: SamplingParams) -> list[Any] | FlatLogprobs:
    return FlatLogprobs() if params.flat_logprobs else []


def _logprobs_of(
    row: LogprobRow, before: Sequence[int], tokenizer: Tokenizer | None
) -> PositionLogprobs:
    def entries() -> Iterator[tuple[int, Logprob]]:
        for token_id, logprob, rank in row:
            text = None if tokenizer is None else tokenizer.token_to_text(token_id, before)
            yield token_id, Logprob(logprob, rank, text)

    return dict(entries())
