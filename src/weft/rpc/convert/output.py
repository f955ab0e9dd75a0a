"""Converts outputs to the wire: chunks and completes, with aligned logprobs."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from weft.core.errors import GenerationError
from weft.core.values.kv_transfer import Resumption
from weft.core.values.types import (
    CompletionOutput,
    Logprob,
    PositionLogprobs,
    RequestOutput,
    SamplingParams,
)
from weft.pb import vllm_engine_pb2 as pb

# Stands for a logprob of minus infinity, or for a missing one, so that JSON made of it is valid.
LOWEST_LOGPROB = -9999.0

PromptLogprobs = Sequence[PositionLogprobs | None]
Scores: TypeAlias = dict[str, Any]  # by field of a message


class StreamedReply:
    """Converts the outputs of one request to messages, and tracks which answers have ended.

    If it `shows_prompt`, the first message has the tokens of the prompt.
    """

    def __init__(
        self,
        params: SamplingParams,
        resumption: Resumption | None = None,
        *,
        shows_prompt: bool = False,
    ) -> None:
        self._params = params
        self._shows_prompt = shows_prompt
        self.has_scores = params.logprobs is not None or params.prompt_logprobs is not None
        self._open = set(range(params.n) if resumption is None else resumption.open_indexes)
        self._silent = self._open.copy()  # answers whose first message has not been sent
        self._plain_by_index: dict[int, pb.GenerateResponse] = {}

    def messages(self, output: RequestOutput) -> list[pb.GenerateResponse]:
        """The chunk of every answer with new tokens, followed by its complete if the answer has ended.

        The messages are valid until the next call.
        """
        messages: list[pb.GenerateResponse] = []
        for answer in output.outputs:
            index = answer.index
            if index not in self._open:
                continue
            if answer.token_ids:
                is_plain = answer.logprobs is None and index in self._plain_by_index
                to_message = self._to_plain_chunk if is_plain else self._to_chunk
                messages.append(to_message(output, answer))
            if answer.finish_reason is not None:
                self._open.remove(index)
                complete = to_complete(output, answer, **self._take_scores(output, answer))
                messages.append(pb.GenerateResponse(complete=complete))
        if self._shows_prompt and messages:
            self._shows_prompt = False
            _show_prompt(messages[0], output)
            self._plain_by_index.clear()  # later messages have no prompt
        return messages

    def end(self) -> None:
        """Checks that every answer has ended: a broken stream must not look complete."""
        if self._open:
            raise GenerationError("the engine ended the request before every answer was finished")

    def _to_plain_chunk(
        self, output: RequestOutput, answer: CompletionOutput
    ) -> pb.GenerateResponse:
        """An earlier chunk, reused with this chunk's tokens: creating a message takes three times as long."""
        message = self._plain_by_index[answer.index]
        chunk = message.chunk
        chunk.token_ids[:] = answer.token_ids
        chunk.completion_tokens = len(answer.token_ids)
        chunk.cached_tokens = output.num_cached_tokens
        return message

    def _to_chunk(self, output: RequestOutput, answer: CompletionOutput) -> pb.GenerateResponse:
        scores = self._take_scores(output, answer)
        chunk = pb.GenerateStreamChunk(
            index=answer.index,
            token_ids=answer.token_ids,
            prompt_tokens=len(output.prompt_token_ids),
            completion_tokens=len(answer.token_ids),
            cached_tokens=output.num_cached_tokens,
            **scores,
        )
        message = pb.GenerateResponse(chunk=chunk)
        if not any(scores.values()):
            self._plain_by_index[answer.index] = message
        return message

    def _take_scores(self, output: RequestOutput, answer: CompletionOutput) -> Scores:
        """Returns the scores for a message of this answer; those of the prompt come in its first."""
        if not self.has_scores:
            return {}
        is_first = answer.index in self._silent
        self._silent.discard(answer.index)
        return to_scores(output, answer, self._params, is_first=is_first)


class WholeReply:
    """Collects the finished answers of one request that is not streamed; with `shows_prompt`, also the prompt's
    tokens.
    """

    def __init__(self, params: SamplingParams, *, shows_prompt: bool = False) -> None:
        self._params = params
        self._shows_prompt = shows_prompt
        self._by_index: dict[int, pb.GenerateResponse] = {}

    def add(self, output: RequestOutput) -> None:
        """Keep the answers that have ended."""
        for answer in output.outputs:
            if answer.is_finished:
                complete = to_complete(output, answer, **to_scores(output, answer, self._params))
                message = pb.GenerateResponse(complete=complete)
                if self._shows_prompt and answer.index == 0:
                    _show_prompt(message, output)
                self._by_index[answer.index] = message

    def messages(self) -> Iterator[pb.GenerateResponse]:
        """Yields a complete for each answer, in order, and forgets it: each may have megabytes."""
        if len(self._by_index) != self._params.n:
            raise GenerationError("the engine ended the request before every answer was finished")
        for index in range(self._params.n):
            yield self._by_index.pop(index)


def _show_prompt(message: pb.GenerateResponse, output: RequestOutput) -> None:
    is_chunk = message.HasField("chunk")
    shown = message.chunk if is_chunk else message.complete
    shown.weft_prompt_token_ids.extend(output.prompt_token_ids)


def to_scores(
    output: RequestOutput,
    answer: CompletionOutput,
    params: SamplingParams,
    *,
    is_first: bool = True,
) -> Scores:
    """The fields of a message that hold log-probabilities; those of the prompt only if it `is_first`."""
    prompt_logprobs = output.prompt_logprobs if is_first else None
    return {
        "output_logprobs": to_output_logprobs(answer, params.logprobs),
        "input_logprobs": to_input_logprobs(
            output.prompt_token_ids, prompt_logprobs, params.prompt_logprobs
        ),
    }


def to_complete(
    output: RequestOutput, answer: CompletionOutput, **scores: Any
) -> pb.GenerateComplete:
    """Returns the complete message of an ended answer; `answer.token_ids` holds all tokens of the answer, or in a
    stream only the new ones.
    """
    complete = pb.GenerateComplete(
        index=answer.index,
        output_ids=answer.token_ids,
        finish_reason=str(answer.finish_reason),
        prompt_tokens=len(output.prompt_token_ids),
        completion_tokens=len(answer.token_ids),
        cached_tokens=output.num_cached_tokens,
        spec_draft_tokens=answer.num_draft_tokens,
        spec_accepted_tokens=answer.num_accepted_tokens,
        **scores,
    )
    transfer = output.kv_transfer_params
    if transfer is not None:
        complete.kv_transfer_params_json = msgspec.json.encode(transfer).decode()
        host, port = transfer.get("remote_host"), transfer.get("remote_port")
        if isinstance(host, str) and isinstance(port, int):  # other connectors may use other keys
            complete.kv_transfer_params.remote_host = host
            complete.kv_transfer_params.remote_port = port
    match answer.stop_reason:
        case int(token_id):
            complete.matched_token_id = token_id
        case str(text):
            complete.matched_stop_str = text
    return complete


def to_output_logprobs(answer: CompletionOutput, num_top: int | None) -> pb.OutputLogProbs | None:
    """Returns an entry for each token of `answer`, or None if no logprobs were requested."""
    if num_top is None or answer.logprobs is None:
        return None
    positions = _aligned(answer.logprobs, len(answer.token_ids))
    return pb.OutputLogProbs(
        token_ids=answer.token_ids,
        token_logprobs=[
            _value_of(position, token_id)
            for position, token_id in zip(positions, answer.token_ids, strict=True)
        ],
        top_logprobs=_to_tops(positions, num_top),
    )


def to_input_logprobs(
    token_ids: Sequence[int], logprobs: PromptLogprobs | None, num_top: int | None
) -> pb.InputLogProbs | None:
    """Returns an entry for each prompt token, the first without a value; None if no logprobs were requested."""
    if num_top is None or logprobs is None:
        return None
    positions = _aligned(logprobs, len(token_ids))
    return pb.InputLogProbs(
        token_ids=token_ids,
        token_logprobs=[
            pb.InputTokenLogProb(value=_value_of(position, token_id) if position else None)
            for position, token_id in zip(positions, token_ids, strict=True)
        ],
        top_logprobs=_to_tops(positions, num_top),
    )


def _to_tops(positions: PromptLogprobs, num_top: int) -> list[pb.TopLogProbs]:
    """Returns the alternatives of each position; none at all if no alternatives were requested, as in the reference."""
    return [to_top_logprobs(position, num_top) for position in positions] if num_top else []


def to_top_logprobs(position: PositionLogprobs | None, num_top: int) -> pb.TopLogProbs:
    """The best `num_top` (all for -1), best first; the sampled token only if it is among them."""
    ranked = sorted((position or {}).items(), key=_by_rank)
    best = ranked if num_top == -1 else ranked[:num_top]
    return pb.TopLogProbs(
        values=[max(entry.logprob, LOWEST_LOGPROB) for _, entry in best],
        token_ids=[token_id for token_id, _ in best],
    )


def _by_rank(item: tuple[int, Logprob]) -> tuple[float, int, int]:
    token_id, entry = item
    return -entry.logprob, entry.rank or 0, token_id


def _value_of(position: PositionLogprobs | None, token_id: int) -> float:
    entry = position.get(token_id) if position else None
    return max(entry.logprob, LOWEST_LOGPROB) if entry else LOWEST_LOGPROB


def _aligned(positions: Sequence[PositionLogprobs | None], length: int) -> PromptLogprobs:
    """Returns exactly `length` entries, so that the n-th entry always belongs to the n-th token."""
    return [*positions[:length], *([None] * (length - len(positions)))]
