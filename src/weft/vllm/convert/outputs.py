"""Converts vLLM's outputs to Weft's values, by field names and without side effects."""

from typing import Any

from weft.core.errors import BadRequest, GenerationError, WeftError
from weft.core.values.types import (
    FinishReason,
    LogprobRow,
    PoolingRequestOutput,
    Request,
    SequenceOutput,
)
from weft.text.outputs.request_stream import RequestStream
from weft.vllm.convert.params import to_constraint

_FAILED = "the engine failed to answer this request"


def to_sequence_output(request: Request, index: int, output: Any) -> SequenceOutput:
    """Converts a `RequestOutput` of kind DELTA, which has one answer, to the new part of that answer."""
    (answer,) = output.outputs
    reason = None if answer.finish_reason is None else FinishReason(answer.finish_reason)
    drafts = answer.spec_decode_metrics
    scored = to_rows(output.prompt_logprobs)
    return SequenceOutput(
        engine_id=request.engine_id,
        index=index,
        token_ids=list(answer.token_ids),
        logprobs=to_rows(answer.logprobs),
        prompt_logprobs=scored[1:] if scored else None,
        num_cached_tokens=output.num_cached_tokens or 0,
        prompt_token_ids=None if request.media is None else output.prompt_token_ids,
        finish_reason=reason,
        # For a repetition, vLLM's stop reason only repeats the finish reason in words.
        stop_reason=answer.stop_reason if reason is FinishReason.STOP else None,
        error=_FAILED if reason is FinishReason.ERROR else None,
        num_draft_tokens=0 if drafts is None else drafts.num_draft_tokens,
        num_accepted_tokens=0 if drafts is None else _accepted(drafts.histogram),
        kv_transfer_params=output.kv_transfer_params or None,
    )


def to_rows(flat: Any) -> list[LogprobRow] | None:
    """Returns the rows of vLLM's `FlatLogprobs`. They are read by column, because reading by entry creates an object
    for each entry.
    """
    if not flat:
        return None
    ids, logprobs, ranks = flat.token_ids, flat.logprobs, flat.ranks
    spans = zip(flat.start_indices, flat.end_indices, strict=True)
    return [
        list(zip(ids[start:end], logprobs[start:end], ranks[start:end], strict=True))
        for start, end in spans
    ]


def to_pooling_output(request: Request, output: Any) -> PoolingRequestOutput:
    """Converts a `PoolingRequestOutput`, whose numbers are a tensor."""
    data = output.outputs.data
    return PoolingRequestOutput(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        data=data.flatten().tolist(),
        shape=tuple(data.shape),
        num_cached_tokens=output.num_cached_tokens or 0,
    )


def _accepted(histogram: list[int]) -> int:
    """Returns the number of accepted draft tokens; `histogram[j]` is the number of steps with j accepted drafts."""
    return sum(j * count for j, count in enumerate(histogram))


def aborted_error(request: Request, stream: RequestStream) -> WeftError:
    """Returns the error of an answer that vLLM aborted. For a grammar that cannot be satisfied, vLLM reports no reason
    after the first token.
    """
    assert stream.error is not None
    constraint = to_constraint(request.params.structured_outputs)
    if constraint and all(stream.progress(i)[0] <= 1 for i in range(request.params.n)):
        (name,) = constraint
        return BadRequest(name, f"{name}: the engine cannot generate a token under this constraint")
    return GenerationError(stream.error)
