"""`RequestStream`: combines the sequence outputs of one request to `RequestOutput`s of its output kind.

Outputs of the engine and of gRPC are handled alike: text, stop strings, deltas, logprobs.
"""

import asyncio
from enum import Enum
from typing import Any

from msgspec.structs import replace

from weft.core.aio.failover import given_outputs
from weft.core.aio.scores import MANY_SCORES, write_scores
from weft.core.client import Sink
from weft.core.values.kv_transfer import GivenAnswer
from weft.core.values.types import (
    CompletionOutput,
    FinishReason,
    OutputKind,
    Request,
    RequestOutput,
    SequenceOutput,
)
from weft.text.outputs.answer_output import AnswerOutput
from weft.text.outputs.token_scores import PromptScores
from weft.text.tokenizer import Tokenizer


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

    is_finished = False
    error: str | None = None
    due: Due = NOT_YET
    # True if `pop` left something: all at once would hold the event loop. The reader pops again at once.
    has_more = False
    _prompt_scores: PromptScores | None = None
    _num_cached_tokens: int | None = None
    _kv_transfer_params: dict[str, Any] | None = None
    _is_lent_ahead = False  # True until the reader has received the transfer parameters
    _has_emitted_end = False

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
        if not request.params.detokenize:
            tokenizer = None
        self._answers = [
            AnswerOutput(index, request, tokenizer, ends_at_stops=ends_at_stops)
            for index in range(request.params.n)
        ]
        self._num_open = request.params.n
        if request.params.prompt_logprobs is not None:
            self._prompt_scores = PromptScores(request, tokenizer)
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
                self._replace_prompt(output.prompt_token_ids)
        if output.prompt_logprobs is not None and self._prompt_scores is not None:
            self._prompt_scores.push(output.prompt_logprobs)
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

    def _replace_prompt(self, token_ids: list[int]) -> None:
        """Takes the tokens of the prompt from the engine, where each media item has become many tokens."""
        self._request = replace(self._request, prompt_token_ids=token_ids)
        if self._prompt_scores is not None:
            self._prompt_scores.token_ids = token_ids

    async def read_scores_soon(self) -> None:
        """Does the slow part of `pop` in advance, on a thread and in pieces: for a long prompt or many answers it
        takes half a second.
        """
        prompt = self._prompt_scores
        if prompt is not None and prompt.num_unread:
            await write_scores(prompt.num_unread, prompt.read)
        if self.due is NOT_YET and not self.is_finished:
            return
        room = MANY_SCORES
        for answer in self._answers:
            while answer.scores is not None and (num_read := answer.scores.read(room)):
                room -= num_read
                if room <= 0:
                    await asyncio.sleep(0)
                    room = MANY_SCORES

    def hand_over(self) -> list[GivenAnswer | None]:
        """Returns the answers so far, for the engine that continues them; incomplete prompt logprobs start anew."""
        if self._prompt_scores is not None and not self._answers[0].num_tokens:
            self._prompt_scores.restart()
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
            if answer.scores is not None:
                room -= answer.scores.num_new
                if room < 0 and deltas:
                    self.due, self.has_more = SOON, True
                    break
            deltas.append(answer.output())
        return deltas

    def _is_whole_due(self) -> bool:
        if self._kind is _FINAL_ONLY:
            return self.is_finished and not self._has_emitted_end
        return any(answer.is_due for answer in self._answers)

    def _due_after(self, answer: AnswerOutput) -> Due:
        """Returns when the stream should emit, after a new part of `answer` has arrived."""
        if self._kind is _FINAL_ONLY:
            return NOW if self.is_finished else NOT_YET
        if not answer.is_due:
            return self.due
        return SOON if answer.num_emitted_tokens and answer.finish_reason is None else NOW

    def _output(self, outputs: list[CompletionOutput]) -> RequestOutput:
        scores = self._prompt_scores
        return RequestOutput(
            request_id=self._request.request_id,
            prompt=self._request.prompt,
            prompt_token_ids=self._request.prompt_token_ids,
            outputs=outputs,
            is_finished=self._has_emitted_end,
            prompt_logprobs=None if scores is None else scores.take(),
            num_cached_tokens=self._num_cached_tokens or 0,
            kv_transfer_params=self._kv_transfer_params,
        )
