"""What a client asks for, to the wire: everything the wire cannot carry is refused by name."""

import json
from typing import cast

from weft.core.errors import BadRequest
from weft.core.structured import kind_of, schema_of
from weft.core.types import (
    OutputKind,
    PromptType,
    SamplingParams,
    StructuredOutputsParams,
    TokensPrompt,
)
from weft.pb import vllm_engine_pb2 as pb

_INT32 = range(-(2**31), 2**31)

# Both sides call these by the same name and mean the same by every value.
_SAME = (
    "n",
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "grammar_from_first_token",
)
_SAME_IF_GIVEN = ("max_tokens", "logprobs", "prompt_logprobs", "seed", "truncate_prompt_tokens")
_NOT_ON_THIS_WIRE = (
    "allowed_token_ids",
    "bad_words",
    "logprob_token_ids",
    "repetition_detection",
    "skip_reading_prefix_cache",
    "stream_interval",
    "thinking_token_budget",
)


def to_sampling_params(params: SamplingParams) -> pb.SamplingParams:
    """Translate checked parameters. Zeros that mean "unset" on the wire are out of range for us."""
    for name in _NOT_ON_THIS_WIRE:
        value = getattr(params, name)
        if value or type(value) is int:  # a budget of 0 is a wish too
            raise not_on_this_wire(name)
    if params.seed is not None and params.seed not in _INT32:
        raise BadRequest(
            "seed", f"seed must fit in 32 bits over this connection, got {params.seed}"
        )
    message = pb.SamplingParams(**{name: getattr(params, name) for name in _SAME})
    for name in _SAME_IF_GIVEN:
        if getattr(params, name) is not None:
            setattr(message, name, getattr(params, name))
    message.top_k = min(max(params.top_k, 0), 2**32 - 1)
    message.stop.extend(params.stop_strings)
    message.stop_token_ids.extend(params.stop_token_ids or ())
    for token_id, bias in (params.logit_bias or {}).items():
        message.logit_bias[int(token_id)] = bias
    if params.structured_outputs is not None:
        _set_constraint(message, params.structured_outputs)
    return message


def _set_constraint(message: pb.SamplingParams, asked: StructuredOutputsParams) -> None:
    if asked.whitespace_pattern is not None:
        raise not_on_this_wire("whitespace_pattern")
    kind = kind_of(asked)
    match kind:
        case "json":
            given = asked.json
            message.json_schema = given if isinstance(given, str) else json.dumps(schema_of(given))
        case "choice":
            message.choice.choices.extend(asked.choice or ())
        case _:
            setattr(message, kind, getattr(asked, kind))


def to_generate_request(
    request_id: str,
    prompt: TokensPrompt | str,
    params: SamplingParams,
    data_parallel_rank: int | None,
) -> pb.GenerateRequest:
    """Translate one request."""
    message = pb.GenerateRequest(
        request_id=request_id,
        sampling_params=to_sampling_params(params),
        stream=params.output_kind is not OutputKind.FINAL_ONLY,
        data_parallel_rank=data_parallel_rank,
    )
    if isinstance(prompt, str):
        message.text = prompt
    else:
        message.tokenized.input_ids.extend(prompt["prompt_token_ids"])
        message.tokenized.original_text = prompt.get("prompt", "")
    return message


def read_prompt(prompt: PromptType) -> TokensPrompt | str:
    """Token ids, or text."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list):
        return {"prompt_token_ids": prompt}
    if prompt.get("cache_salt") is not None:
        raise not_on_this_wire("cache_salt")
    if prompt.get("prompt_pair") is not None:
        raise not_on_this_wire("prompt_pair")
    text = prompt.get("prompt")
    token_ids = cast("TokensPrompt", prompt).get("prompt_token_ids")
    if token_ids is not None:
        return {"prompt_token_ids": token_ids, "prompt": text or ""}
    if text is not None:
        return text
    raise BadRequest("prompt", "prompt must hold prompt_token_ids or prompt")


def not_on_this_wire(name: str) -> BadRequest:
    """The error for something that only an engine in this process can be given."""
    return BadRequest(name, f"{name} cannot be sent over gRPC")
