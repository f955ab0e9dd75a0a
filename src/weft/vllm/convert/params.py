"""Converts a checked request to the arguments of vLLM's parameters, by field names and without side effects.

vLLM gets a separate request for each of the n answers, as token ids, and returns token ids. `weft.text.outputs` makes
texts, applies stop strings, and emits outputs of the requested kind and interval, as with Weft's engine.
"""

from typing import Any

import msgspec

from weft.core.errors import BadRequest
from weft.core.values.kv_transfer import KEY
from weft.core.values.types import Request, SamplingParams, StructuredOutputsParams

# Fields of `SamplingParams` that are converted to other fields.
CHANGED = (
    "seed", "logprobs", "prompt_logprobs", "logprob_token_ids", "skip_reading_prefix_cache",
    "structured_outputs", "grammar_from_first_token", "repetition_detection",
)  # fmt: skip
# Fields that this server applies before or after vLLM's work.
DONE_HERE = (
    "n", "stop", "include_stop_str_in_output", "truncate_prompt_tokens", "flat_logprobs",
    "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "output_kind",
    "stream_interval",
)  # fmt: skip
REFUSED = {
    "bad_words_token_ids": "vLLM takes bad words as texts",
    "thinking_token_budget": "vLLM accepts it but does not enforce it",
}
# vLLM has all other fields, with the same name and meaning.
SAME = tuple(
    name
    for name in SamplingParams.__struct_fields__
    if name not in {*CHANGED, *DONE_HERE, *REFUSED}
)
_CONSTRAINTS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
REFUSED_OF_CONSTRAINTS = {"whitespace_pattern": "vLLM has no setting for this whitespace"}


def check_params(params: SamplingParams) -> None:
    """Raises an error for parameters that vLLM's engine would ignore."""
    for name, why in REFUSED.items():
        if getattr(params, name) is not None:
            raise BadRequest(name, f"{name} is not supported by this engine: {why}")
    if params.extra_args and params.n > 1:  # vLLM gets a separate request for each answer
        raise BadRequest(KEY, f"{KEY} needs n=1, got {params.n}")
    constraint = params.structured_outputs
    if constraint is None:
        return
    for name, why in REFUSED_OF_CONSTRAINTS.items():
        if getattr(constraint, name) is not None:
            raise BadRequest(name, f"{name} is not supported by this engine: {why}")


def to_sampling(request: Request, index: int) -> dict[str, Any]:
    """Returns the arguments of vLLM's `SamplingParams` for one answer, as plain values and dictionaries.

    Only the first answer computes prompt logprobs, because all answers have the same prompt.
    """
    params = request.params
    is_first = index == 0
    detection = params.repetition_detection
    return {name: getattr(params, name) for name in SAME} | {
        "n": 1,
        # Without a seed, vLLM samples all requests of a step at once, which is faster.
        "seed": None if params.seed is None else params.seed + index,
        "logprobs": None if params.logprob_token_ids else params.logprobs,
        "logprob_token_ids": params.logprob_token_ids,
        "prompt_logprobs": params.prompt_logprobs if is_first else None,
        "flat_logprobs": True,
        "skip_reading_prefix_cache": params.skip_reading_prefix_cache or None,
        "repetition_detection": None if detection is None else msgspec.to_builtins(detection),
        "structured_outputs": to_constraint(params.structured_outputs),
        "detokenize": False,
    }


def to_constraint(constraint: StructuredOutputsParams | None) -> dict[str, Any] | None:
    """Returns the arguments of vLLM's `StructuredOutputsParams`; only fields that are set."""
    if constraint is None:
        return None
    given = {name: getattr(constraint, name) for name in _CONSTRAINTS}
    return {name: value for name, value in given.items() if value is not None}


def reasoning_ended(request: Request, *, has_parser: bool) -> bool | None:
    """Returns the value for vLLM that says whether reasoning has ended, for a constraint that applies after it.

    With None, vLLM decides with its own parser, which has no effect without a constraint.
    """
    params = request.params
    if params.structured_outputs is None:
        return None
    is_open = request.reasoning is not None and not params.grammar_from_first_token
    if is_open and not has_parser:
        raise BadRequest(
            "reasoning_parser_kwargs",
            "structured_outputs after reasoning needs an engine that was started with --reasoning-parser; without it, "
            "the constraint would apply to the reasoning too",
        )
    return not is_open


def to_pooling(request: Request) -> dict[str, Any]:
    """Returns the arguments of vLLM's `PoolingParams`. Weft's `normalize` is vLLM's `use_activation` for embeddings."""
    params = request.pooling
    assert params is not None
    if request.token_type_ids is not None:
        raise BadRequest(
            "prompt_pair", "prompt_pair is not supported by this engine: join the two texts"
        )
    activates = params.use_activation if params.normalize is None else params.normalize
    return {
        "task": params.task,
        "dimensions": params.dimensions,
        "use_activation": activates,
        "skip_reading_prefix_cache": params.skip_reading_prefix_cache,
    }
