"""The client's half of one request: chunks and completes in, `RequestOutput`s with text out."""

from collections.abc import Sequence
from typing import Protocol

from weft.core.errors import GenerationError
from weft.core.logprobs import new_logprobs
from weft.core.types import (
    CompletionOutput,
    FinishReason,
    Logprob,
    OutputKind,
    PositionLogprobs,
    RequestOutput,
    SamplingParams,
)
from weft.pb import vllm_engine_pb2 as pb
from weft.text.detokenizer import Detokenizer
from weft.text.stops import StopMatcher
from weft.text.tokenizer import Tokenizer

_REPAIR_TOKENS = 4  # tokens before one whose text may complete a character with it


class _Piece(Protocol):
    """What chunks and completes have in common."""

    @property
    def index(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def output_logprobs(self) -> pb.OutputLogProbs: ...
    @property
    def input_logprobs(self) -> pb.InputLogProbs: ...


class RemoteAnswers:
    """Follows the answers of one request, and says each time what the caller is to hear."""

    def __init__(
        self,
        request_id: str,
        params: SamplingParams,
        prompt: str | None,
        prompt_token_ids: list[int],
        tokenizer: Tokenizer | None,
        eos_token_ids: Sequence[int],
    ) -> None:
        self._request_id = request_id
        self._params = params
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._tokenizer = tokenizer if params.detokenize else None
        # A grammar ends with the end of the sequence, whether or not that is ignored elsewhere.
        can_end = params.structured_outputs is not None or not params.ignore_eos
        hidden = set(params.stop_token_ids or ()) | set(eos_token_ids if can_end else ())
        hidden_ids = frozenset() if params.include_stop_str_in_output else frozenset(hidden)
        self._answers = [
            _Answer(index, params, prompt_token_ids, self._tokenizer, hidden_ids)
            for index in range(params.n)
        ]
        self._prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
        self._num_cached_tokens = 0

    @property
    def is_finished(self) -> bool:
        """Whether every answer has ended."""
        return all(answer.finish_reason is not None for answer in self._answers)

    def take(self, response: pb.GenerateResponse) -> RequestOutput | None:
        """What to tell the caller after this message, if anything."""
        match response.WhichOneof("response"):
            case "chunk":
                answer = self._answer(response.chunk)
                answer.push(response.chunk.token_ids, response.chunk.output_logprobs)
            case "complete":
                answer = self._answer(response.complete)
                self._end(answer, response.complete)
            case _:
                raise GenerationError("the server sent an empty answer")
        return self._output(answer)

    def _answer(self, piece: _Piece) -> "_Answer":
        if piece.index >= len(self._answers):
            raise GenerationError(f"the server sent answer {piece.index} of {len(self._answers)}")
        self._num_cached_tokens = piece.cached_tokens
        self._cut_prompt(piece.prompt_tokens)
        if self._prompt_logprobs is None and piece.input_logprobs.token_ids:
            self._prompt_logprobs = self._to_prompt_logprobs(piece.input_logprobs)
        return self._answers[piece.index]

    def _cut_prompt(self, num_kept: int) -> None:
        """Do as the server did when it was asked to truncate."""
        if num_kept < len(self._prompt_token_ids):
            keeps_start = self._tokenizer and self._tokenizer.truncation_side == "right"
            kept = slice(num_kept) if keeps_start else slice(-num_kept, None)
            self._prompt_token_ids = self._prompt_token_ids[kept]

    def _end(self, answer: "_Answer", complete: pb.GenerateComplete) -> None:
        if self._params.output_kind is OutputKind.FINAL_ONLY:
            answer.push(complete.output_ids, complete.output_logprobs)
        stop_reason: int | str | None = None
        match complete.WhichOneof("matched_stop"):
            case "matched_token_id":
                stop_reason = complete.matched_token_id
            case "matched_stop_str":
                stop_reason = complete.matched_stop_str
        answer.num_draft_tokens = complete.spec_draft_tokens
        answer.num_accepted_tokens = complete.spec_accepted_tokens
        answer.finish(_to_finish_reason(complete.finish_reason), stop_reason)

    def _output(self, changed: "_Answer") -> RequestOutput | None:
        match self._params.output_kind:
            case OutputKind.DELTA:
                outputs = [changed.delta()]
            case OutputKind.CUMULATIVE:
                outputs = [answer.whole() for answer in self._answers]
            case _:
                if not self.is_finished:
                    return None
                outputs = [answer.whole() for answer in self._answers]
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=outputs,
            is_finished=self.is_finished,
            prompt_logprobs=self._prompt_logprobs,
            num_cached_tokens=self._num_cached_tokens,
        )

    def _to_prompt_logprobs(self, logprobs: pb.InputLogProbs) -> Sequence[PositionLogprobs | None]:
        token_ids = list(logprobs.token_ids)
        scored = new_logprobs(is_flat=self._params.flat_logprobs)
        rows = zip(token_ids, logprobs.token_logprobs, logprobs.top_logprobs, strict=True)
        for position, (token_id, value, top) in enumerate(rows):
            before = token_ids[max(0, position - _REPAIR_TOKENS) : position]
            is_scored = value.HasField("value")
            scored.append(
                _to_position(token_id, value.value, top, before, self._tokenizer)
                if is_scored
                else None
            )
        return scored


class _Answer:
    """One of the n answers: all of it so far, and how much of it has been told."""

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        prompt_token_ids: list[int],
        tokenizer: Tokenizer | None,
        hidden_ids: frozenset[int],
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.num_draft_tokens = 0  # told at the end
        self.num_accepted_tokens = 0
        self._index = index
        self._params = params
        self._tokenizer = tokenizer
        self._hidden_ids = hidden_ids
        self._detokenizer = _detokenizer(params, prompt_token_ids, tokenizer)
        self._matcher = StopMatcher(
            params.stop_strings, is_included=params.include_stop_str_in_output
        )
        self._is_cut = False  # a stop string has been found: no more text is shown
        self._stop_reason: int | str | None = None
        self._prompt_tail = prompt_token_ids[-_REPAIR_TOKENS:]
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs = new_logprobs(is_flat=params.flat_logprobs)
        self._logprob_sum = 0.0
        self._num_told_chars = 0
        self._num_told_tokens = 0

    def push(self, token_ids: Sequence[int], logprobs: pb.OutputLogProbs) -> None:
        """Take new tokens."""
        if self.finish_reason is not None:
            raise GenerationError(f"the server sent more of answer {self._index} after its end")
        if self._params.logprobs is not None:
            self._take_logprobs(token_ids, logprobs)
        for token_id in token_ids:
            self._token_ids.append(token_id)
            # Nothing follows a token that ends the answer, and its own text is not shown.
            if self._detokenizer is not None and token_id not in self._hidden_ids:
                self._read(self._detokenizer.push(token_id))

    def finish(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        """End the answer; unless a stop string cut it, what was held back is shown."""
        self.finish_reason = reason
        self._stop_reason = stop_reason
        if not self._is_cut and self._detokenizer is not None:
            self._text += self._matcher.flush() + self._detokenizer.flush()

    def delta(self) -> CompletionOutput:
        """What is new."""
        output = self._tell(self._num_told_chars, self._num_told_tokens)
        self._num_told_chars = len(self._text)
        self._num_told_tokens = len(self._token_ids)
        return output

    def whole(self) -> CompletionOutput:
        """Everything so far."""
        return self._tell(0, 0)

    def _tell(self, first_char: int, first_token: int) -> CompletionOutput:
        wants_logprobs = self._params.logprobs is not None
        return CompletionOutput(
            index=self._index,
            text=self._text[first_char:],
            token_ids=self._token_ids[first_token:],
            cumulative_logprob=self._logprob_sum if wants_logprobs else None,
            logprobs=self._logprobs[first_token:] if wants_logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )

    def _read(self, text: str) -> None:
        if self._is_cut or not text:
            return
        is_searched = len(self._token_ids) > self._params.min_tokens
        found = self._matcher.push(text, is_searched=is_searched)
        self._text += found.text
        self._is_cut = found.stop is not None

    def _take_logprobs(self, token_ids: Sequence[int], logprobs: pb.OutputLogProbs) -> None:
        if not len(token_ids) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs):
            raise GenerationError("the server sent logprobs that do not match the tokens")
        seen = self._prompt_tail + self._token_ids[-_REPAIR_TOKENS:]
        rows = zip(token_ids, logprobs.token_logprobs, logprobs.top_logprobs, strict=True)
        for token_id, value, top in rows:
            before = seen[-_REPAIR_TOKENS:]
            self._logprob_sum += value
            self._logprobs.append(_to_position(token_id, value, top, before, self._tokenizer))
            seen.append(token_id)


def _detokenizer(
    params: SamplingParams, prompt_token_ids: list[int], tokenizer: Tokenizer | None
) -> Detokenizer | None:
    if tokenizer is None:
        return None
    return tokenizer.detokenizer(
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
        prompt_token_ids=prompt_token_ids,
    )


def _to_position(
    token_id: int,
    logprob: float,
    top: pb.TopLogProbs,
    before: Sequence[int],
    tokenizer: Tokenizer | None,
) -> PositionLogprobs:
    """The sampled token first, then the best. One that is not among the best is ranked just behind."""

    def entry(one: int, value: float, rank: int) -> Logprob:
        return Logprob(value, rank, tokenizer.token_to_text(one, before) if tokenizer else None)

    ids = list(top.token_ids)
    rank = ids.index(token_id) + 1 if token_id in ids else len(ids) + 1
    position = {token_id: entry(token_id, logprob, rank)}
    for place, (one, value) in enumerate(zip(ids, top.values, strict=True), start=1):
        position.setdefault(one, entry(one, value, place))
    return position


def _to_finish_reason(text: str) -> FinishReason:
    try:
        return FinishReason(text)
    except ValueError:
        raise GenerationError(f"the server sent an unknown finish_reason {text[:40]!a}") from None
