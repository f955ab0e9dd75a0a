"""Converts outputs to responses of `vllm.Inference`."""

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.errors import GenerationError
from weft.core.values.kv_transfer import lends_prompt
from weft.core.values.types import (
    CompletionOutput,
    FinishReason,
    Logprob,
    PositionLogprobs,
    RequestOutput,
    SamplingParams,
)
from weft.pb import vllm_inference_pb2 as pb
from weft.rpc.convert.inference_request import Shape
from weft.rpc.convert.json_objects import to_struct
from weft.rpc.convert.output import LOWEST_LOGPROB

_REASONS: Mapping[FinishReason, pb.FinishInfo.FinishReason] = {
    FinishReason.STOP: pb.FinishInfo.STOP,
    FinishReason.LENGTH: pb.FinishInfo.LENGTH,
}


class InferenceReply:
    """Converts the outputs of one request, and tracks which answers have ended."""

    def __init__(self, params: SamplingParams, shape: Shape) -> None:
        self.has_scores = (
            params.logprobs is not None
            or params.prompt_logprobs is not None
            or params.logprob_token_ids is not None
        )
        self._shape = shape
        self._lends = lends_prompt(params.extra_args)
        self._num_tokens_by_index = dict.fromkeys(range(params.n), 0)
        self._open = set(range(params.n))
        self._has_begun = False

    def pieces(self, output: RequestOutput) -> list[pb.GenerateResponse]:
        """The messages of a stream: first the prompt's, then one for each answer with something new."""
        messages = []
        if not self._has_begun:
            self._has_begun = True
            messages.append(pb.GenerateResponse(prompt_info=self._prompt_info(output)))
        messages += (
            pb.GenerateResponse(outputs=self._sequence(output, answer))
            for answer in output.outputs
            if answer.index in self._open
        )
        return messages

    def whole(self, output: RequestOutput) -> pb.GenerateResponse:
        """The only message of a request with one answer, made of its last output."""
        [answer] = output.outputs
        sequence = self._sequence(output, answer)
        return pb.GenerateResponse(prompt_info=self._prompt_info(output), outputs=sequence)

    def end(self) -> None:
        """Checks that every answer has ended: a broken stream must not look complete."""
        if self._open:
            raise GenerationError("the engine ended the request before every answer was finished")

    def _prompt_info(self, output: RequestOutput) -> pb.PromptInfo:
        token_ids = output.prompt_token_ids
        return pb.PromptInfo(
            num_prompt_tokens=len(token_ids),
            token_ids=token_ids if self._shape.prompt_token_ids else (),
            **_scores(token_ids, output.prompt_logprobs),
        )

    def _sequence(self, output: RequestOutput, answer: CompletionOutput) -> pb.SequenceOutput:
        self._num_tokens_by_index[answer.index] += len(answer.token_ids)
        message = pb.SequenceOutput(
            index=answer.index,
            text=answer.text if self._shape.text else "",
            num_tokens=len(answer.token_ids),
            token_ids=answer.token_ids if self._shape.token_ids else (),
            **_scores(answer.token_ids, answer.logprobs),
        )
        if answer.finish_reason is not None:
            self._open.remove(answer.index)
            num_tokens = self._num_tokens_by_index[answer.index]
            message.finish_info.CopyFrom(_finish_info(output, answer, num_tokens))
            if (
                self._lends
            ):  # a router waits for an object, which is empty if the prompt has no whole block
                message.finish_info.kv_transfer_params.SetInParent()
        return message


def _finish_info(output: RequestOutput, answer: CompletionOutput, num_tokens: int) -> pb.FinishInfo:
    assert answer.finish_reason is not None
    info = pb.FinishInfo(
        num_output_tokens=num_tokens,
        finish_reason=_REASONS.get(answer.finish_reason, pb.FinishInfo.ABORTED),
        num_cached_tokens=output.num_cached_tokens,
    )
    match answer.stop_reason:
        case int(token_id):
            info.stop_token_id = token_id
        case str(text):
            info.stop_string = text
        case None if answer.finish_reason is FinishReason.STOP and answer.token_ids:
            info.eos_token_id = answer.token_ids[-1]
    if output.kv_transfer_params is not None:
        info.kv_transfer_params.CopyFrom(to_struct(output.kv_transfer_params))
    return info


def _scores(
    token_ids: Sequence[int], positions: Sequence[PositionLogprobs | None] | None
) -> dict[str, Any]:
    """The fields with log-probabilities, one entry for each token; nothing if none were requested."""
    if positions is None:
        return {}
    rows = list(zip(token_ids, positions, strict=True))
    own = [(position or {}).get(token_id) for token_id, position in rows]
    return {
        # 0 where nothing is scored: nothing precedes the first token of a prompt.
        "logprobs": [0.0 if entry is None else _value(entry) for entry in own],
        "ranks": [0 if entry is None else entry.rank or 0 for entry in own],
        "candidate_tokens": [_candidates(token_id, position) for token_id, position in rows],
    }


def _candidates(token_id: int, position: PositionLogprobs | None) -> pb.CandidateTokenInfo:
    others = (pair for pair in (position or {}).items() if pair[0] != token_id)
    return pb.CandidateTokenInfo(
        tokens=[
            pb.CandidateTokenInfo.TokenInfo(id=one, logprob=_value(entry), rank=entry.rank or 0)
            for one, entry in others
        ]
    )


def _value(entry: Logprob) -> float:
    return max(entry.logprob, LOWEST_LOGPROB)
