"""Converts chunks and completes of Generate to outputs of sequences, in the engine's form."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from weft.core.errors import GenerationError
from weft.core.values.types import FinishReason, LogprobRow, OutputKind, Request, SequenceOutput
from weft.pb import vllm_engine_pb2 as pb


class _Piece(Protocol):
    """Fields that chunks and completes share."""

    @property
    def index(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def output_logprobs(self) -> pb.OutputLogProbs: ...
    @property
    def input_logprobs(self) -> pb.InputLogProbs: ...
    @property
    def weft_prompt_token_ids(self) -> Sequence[int]: ...


class RemoteAnswers:
    """Follows the answers of one request, and holds back a token that may be a silent end. The server sends a stop
    token in a chunk, and only the following complete message reports that the token ended the answer and so has
    no text; an engine reports both at once. A server with strict tops lists only the top tokens, best first.
    Other servers put the sampled token before the top tokens and truncate the list to its length, so the position
    of the sampled token means nothing if it comes last.
    """

    def __init__(self, request: Request, *, has_strict_tops: bool) -> None:
        self._request = request
        self._has_strict_tops = has_strict_tops
        self._stop_ids = {*request.eos_token_ids, *(request.params.stop_token_ids or ())}
        begun = request.resumption
        self._open = set(range(request.params.n) if begun is None else begun.open_indexes)
        self._held: dict[int, SequenceOutput] = {}

    @property
    def is_finished(self) -> bool:
        """True if every answer has ended."""
        return not self._open

    def take(self, response: pb.GenerateResponse) -> list[SequenceOutput]:
        """Returns the new outputs of a message."""
        match response.WhichOneof("response"):
            case "chunk":
                return self._chunk(response.chunk)
            case "complete":
                return self._complete(response.complete)
        raise GenerationError("the server sent an empty answer")

    def _chunk(self, chunk: pb.GenerateStreamChunk) -> list[SequenceOutput]:
        output = self._output(chunk, chunk.token_ids)
        held = self._held.pop(chunk.index, None)
        if output.token_ids and output.token_ids[-1] in self._stop_ids:
            self._held[chunk.index] = output
            return [] if held is None else [held]
        return [output] if held is None else [held, output]

    def _complete(self, complete: pb.GenerateComplete) -> list[SequenceOutput]:
        # In a stream, the last tokens were sent in earlier chunks.
        is_whole = self._request.params.output_kind is OutputKind.FINAL_ONLY
        output = self._output(complete, complete.output_ids if is_whole else ())
        self._open.remove(complete.index)
        held = self._held.pop(complete.index, output)
        return [
            SequenceOutput(
                engine_id=self._request.engine_id,
                index=complete.index,
                token_ids=held.token_ids,
                logprobs=held.logprobs,
                prompt_logprobs=held.prompt_logprobs or output.prompt_logprobs,
                num_cached_tokens=complete.cached_tokens,
                finish_reason=_to_finish_reason(complete.finish_reason),
                stop_reason=_to_stop_reason(complete),
                num_draft_tokens=complete.spec_draft_tokens,
                num_accepted_tokens=complete.spec_accepted_tokens,
                prompt_token_ids=held.prompt_token_ids or output.prompt_token_ids,
                kv_transfer_params=_to_transfer(complete.kv_transfer_params_json),
            )
        ]

    def _output(self, piece: _Piece, token_ids: Sequence[int]) -> SequenceOutput:
        if piece.index >= self._request.params.n:
            raise GenerationError(
                f"the server sent answer {piece.index} of {self._request.params.n}"
            )
        if piece.index not in self._open:
            raise GenerationError(f"the server sent more of answer {piece.index} after its end")
        has_logprobs = self._request.params.logprobs is not None and token_ids
        return SequenceOutput(
            engine_id=self._request.engine_id,
            index=piece.index,
            token_ids=list(token_ids),
            logprobs=self._to_rows(token_ids, piece.output_logprobs) if has_logprobs else None,
            prompt_logprobs=self._to_prompt_rows(piece.input_logprobs) or None,
            num_cached_tokens=piece.cached_tokens,
            prompt_token_ids=list(piece.weft_prompt_token_ids) or None,
        )

    def _to_rows(self, token_ids: Sequence[int], logprobs: pb.OutputLogProbs) -> list[LogprobRow]:
        tops = _tops_of(logprobs)
        if not len(token_ids) == len(logprobs.token_logprobs) == len(tops):
            raise GenerationError("the server sent logprobs that do not match the tokens")
        rows = zip(token_ids, logprobs.token_logprobs, tops, strict=True)
        return [self._to_row(*row) for row in rows]

    def _to_prompt_rows(self, logprobs: pb.InputLogProbs) -> list[LogprobRow]:
        """Rows of the prompt, without the first token, which has no logprob."""
        rows = zip(logprobs.token_ids, logprobs.token_logprobs, _tops_of(logprobs), strict=True)
        return [self._to_row(token_id, value.value, top) for token_id, value, top in rows][1:]

    def _to_row(self, token_id: int, logprob: float, top: pb.TopLogProbs) -> LogprobRow:
        """A row with the sampled token first, then the best tokens, each with its rank if known."""
        listed = zip(top.token_ids, top.values, strict=True)
        best = sorted(listed, key=lambda pair: -pair[1])
        ids = [one for one, _ in best]
        own = ids.index(token_id) + 1 if token_id in ids else None
        if own == len(ids) and not self._has_strict_tops:
            own = None
        row: LogprobRow = [(token_id, logprob, own)]
        row += [(one, value, rank) for rank, (one, value) in enumerate(best, 1) if one != token_id]
        return row


def _tops_of(logprobs: pb.OutputLogProbs | pb.InputLogProbs) -> Sequence[pb.TopLogProbs]:
    """Alternatives per token; empty where no alternatives were requested."""
    return logprobs.top_logprobs or [pb.TopLogProbs()] * len(logprobs.token_logprobs)


def _to_transfer(text: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else None
    except msgspec.DecodeError:
        raise GenerationError("the server sent kv_transfer_params_json that is no object") from None


def _to_stop_reason(complete: pb.GenerateComplete) -> int | str | None:
    match complete.WhichOneof("matched_stop"):
        case "matched_token_id":
            return complete.matched_token_id
        case "matched_stop_str":
            return complete.matched_stop_str
    return None


def _to_finish_reason(text: str) -> FinishReason:
    try:
        return FinishReason(text)
    except ValueError:
        raise GenerationError(f"the server sent an unknown finish_reason {text[:40]!a}") from None
