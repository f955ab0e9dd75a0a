"""What a caller asks for, from the wire: every field of a request is used here or refused by name."""

import math
import struct
from dataclasses import dataclass

from weft.core.errors import BadRequest
from weft.core.types import (
    LoRARequest,
    OutputKind,
    PromptType,
    SamplingParams,
    StructuredOutputsParams,
)
from weft.core.validate import Limits, validate_params, validate_prompt, validate_request_id
from weft.pb import common_pb2, vllm_engine_pb2

MAX_FLUSH_TIMEOUT_S = 3600.0
MAX_TRUNCATED_TOKENS = 1_000_000

_FLOAT32 = struct.Struct("<f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A `GenerateRequest` in our terms. `request_id` None: the server is to make one.

    The adapter is named beside the message (`weft.rpc.adapters`).
    """

    request_id: str | None
    prompt: PromptType
    prompt_text: str | None
    params: SamplingParams
    data_parallel_rank: int | None
    is_streaming: bool
    lora_request: LoRARequest | None = None


def to_generation(
    request: vllm_engine_pb2.GenerateRequest, limits: Limits, data_parallel_size: int = 1
) -> Generation:
    """Translate and check. Parameters come before the input: clients rely on which error wins."""
    if request.request_id:
        validate_request_id(request.request_id)
    params = to_sampling_params(request.sampling_params, is_streaming=request.stream)
    validate_params(params, limits)
    _refuse_unsupported(request)
    return Generation(
        request_id=request.request_id or None,
        prompt=_to_prompt(request, params, limits),
        prompt_text=request.tokenized.original_text or request.text or None,
        params=params,
        data_parallel_rank=_to_rank(request, data_parallel_size),
        is_streaming=request.stream,
    )


def to_sampling_params(
    params: vllm_engine_pb2.SamplingParams, *, is_streaming: bool
) -> SamplingParams:
    """Translate; a number that is unset takes its neutral value. Ranges are not checked here."""
    return SamplingParams(
        n=params.n or 1,
        temperature=_shortest(params.temperature) if params.HasField("temperature") else 1.0,
        top_p=_shortest(params.top_p or 1.0),
        top_k=params.top_k,
        min_p=_shortest(params.min_p),
        presence_penalty=_shortest(params.presence_penalty),
        frequency_penalty=_shortest(params.frequency_penalty),
        repetition_penalty=_shortest(params.repetition_penalty or 1.0),
        seed=params.seed if params.HasField("seed") else None,
        structured_outputs=_to_structured_outputs(params),
        grammar_from_first_token=params.grammar_from_first_token,
        stop=list(params.stop) or None,
        stop_token_ids=list(params.stop_token_ids) or None,
        include_stop_str_in_output=params.include_stop_str_in_output,
        ignore_eos=params.ignore_eos,
        max_tokens=params.max_tokens if params.HasField("max_tokens") else None,
        min_tokens=params.min_tokens,
        logprobs=params.logprobs if params.HasField("logprobs") else None,
        prompt_logprobs=params.prompt_logprobs if params.HasField("prompt_logprobs") else None,
        logit_bias={key: _shortest(value) for key, value in params.logit_bias.items()} or None,
        truncate_prompt_tokens=(
            params.truncate_prompt_tokens if params.HasField("truncate_prompt_tokens") else None
        ),
        # The caller gets token ids; text is made only to search it for stop strings.
        detokenize=bool(params.stop),
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
        output_kind=OutputKind.DELTA if is_streaming else OutputKind.FINAL_ONLY,
    )


def to_flush_timeout(request: common_pb2.FlushCacheRequest) -> float:
    """How long to keep trying, in seconds."""
    timeout_s = request.timeout_s
    if not (math.isfinite(timeout_s) and 0 <= timeout_s <= MAX_FLUSH_TIMEOUT_S):
        raise BadRequest(
            "timeout_s",
            f"timeout_s must be in [0, {MAX_FLUSH_TIMEOUT_S:g}] seconds, got {timeout_s}",
        )
    return timeout_s


def refuse_profile_options(request: common_pb2.StartProfileRequest) -> None:
    """The engine chooses how it profiles; a caller's wish is refused by name."""
    for field, _ in request.ListFields():
        raise _not_supported_yet(field.name)


def _shortest(value: float) -> float:
    """The shortest decimal with the same 32 bits: the wire's 0.9 is 0.9, not 0.8999999761581421.

    So a request means exactly the same over this wire and over one that carries decimals.
    """
    if not math.isfinite(value) or value.is_integer():
        return value
    bits = _FLOAT32.pack(value)
    candidates = (float(f"{value:.{digits}g}") for digits in (6, 7, 8))
    return next((short for short in candidates if _FLOAT32.pack(short) == bits), value)


def _to_prompt(
    request: vllm_engine_pb2.GenerateRequest, params: SamplingParams, limits: Limits
) -> PromptType:
    match request.WhichOneof("input"):
        case "text":
            if not request.text:
                raise BadRequest("text", "text must not be empty")
            return request.text
        case "tokenized":
            return {"prompt_token_ids": _to_token_ids(request.tokenized, params, limits)}
        case _:
            raise BadRequest("input", "input is missing: set tokenized or text")


def _to_token_ids(
    tokenized: vllm_engine_pb2.TokenizedInput, params: SamplingParams, limits: Limits
) -> list[int]:
    token_ids = tokenized.input_ids
    # Refuse by length before millions of ids are copied.
    if params.truncate_prompt_tokens is not None:
        # The engine truncates, on the side its tokenizer says, and checks what is left.
        max_given = max(MAX_TRUNCATED_TOKENS, limits.max_model_len)
        if len(token_ids) > max_given:
            raise BadRequest(
                "input_ids",
                f"input_ids takes at most {max_given} ids to truncate, got {len(token_ids)}",
            )
        return list(token_ids)
    if len(token_ids) >= limits.max_model_len:
        validate_prompt(token_ids, limits)
    copied = list(token_ids)
    validate_prompt(copied, limits)
    return copied


def _to_rank(request: vllm_engine_pb2.GenerateRequest, data_parallel_size: int) -> int | None:
    if not request.HasField("data_parallel_rank"):
        return None
    rank = request.data_parallel_rank
    if not 0 <= rank < data_parallel_size:
        raise BadRequest(
            "data_parallel_rank",
            f"data_parallel_rank must be in 0 to {data_parallel_size - 1}, got {rank}",
        )
    return rank


def _to_structured_outputs(
    params: vllm_engine_pb2.SamplingParams,
) -> StructuredOutputsParams | None:
    match params.WhichOneof("constraint"):
        case None:
            return None
        case "json_schema":
            return StructuredOutputsParams(json=params.json_schema)
        case "choice":
            return StructuredOutputsParams(choice=list(params.choice.choices))
        case "json_object":
            return StructuredOutputsParams(json_object=True) if params.json_object else None
        case kind:
            return StructuredOutputsParams(**{kind: getattr(params, kind)})


def _refuse_unsupported(request: vllm_engine_pb2.GenerateRequest) -> None:
    if request.extra_mm_inputs:
        raise _not_supported_yet("extra_mm_inputs")
    for name in ("mm_inputs", "media_refs", "kv_transfer_params", "kv_transfer_params_json"):
        if request.HasField(name):
            raise _not_supported_yet(name)


def _not_supported_yet(field_name: str) -> BadRequest:
    return BadRequest(field_name, f"{field_name} is not supported yet")
