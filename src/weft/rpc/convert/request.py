"""What a caller asks for, from the wire: every field of a request is used here or refused by name."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from google.protobuf.message import Message

from weft.core.errors import BadRequest
from weft.core.types import PromptType, SamplingParams
from weft.core.validate import Limits, check_prompt_length
from weft.pb import common_pb2, vllm_engine_pb2
from weft.rpc.convert.sampling import MAX_TOKEN_IDS, to_params

MAX_FLUSH_TIMEOUT_S = 3600.0

# Fields that are refused by name, by the message they are of.
REFUSED_FIELDS = MappingProxyType(
    {
        "GenerateRequest": frozenset(
            {
                "extra_mm_inputs",
                "kv_transfer_params",
                "kv_transfer_params_json",
                "media_refs",
                "mm_inputs",
            }
        ),
        # The engine chooses how it profiles.
        "StartProfileRequest": frozenset(common_pb2.StartProfileRequest.DESCRIPTOR.fields_by_name),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A `GenerateRequest` in our terms. `request_id` None: the server is to make one.

    `prompt` reads the input, and refuses it: after the parameters, because clients rely on which error
    wins. The adapter is named beside the message (`weft.rpc.adapters`).
    """

    request_id: str | None
    prompt: Callable[[], PromptType]
    prompt_text: str | None
    params: SamplingParams
    data_parallel_rank: int | None
    is_streaming: bool


def to_generation(request: vllm_engine_pb2.GenerateRequest, limits: Limits) -> Generation:
    """Translate; what is refused here is what only this wire knows of."""
    params = to_params(request.sampling_params, is_streaming=request.stream)
    return Generation(
        request_id=request.request_id or None,
        prompt=partial(_to_prompt, request, params, limits),
        prompt_text=request.tokenized.original_text or request.text or None,
        params=params,
        data_parallel_rank=(
            request.data_parallel_rank if request.HasField("data_parallel_rank") else None
        ),
        is_streaming=request.stream,
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
    """Refuse a caller's wish by name."""
    _refuse_fields(request)


def _to_prompt(
    request: vllm_engine_pb2.GenerateRequest, params: SamplingParams, limits: Limits
) -> PromptType:
    _refuse_fields(request)
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
        max_given = max(MAX_TOKEN_IDS, limits.max_model_len)
        if len(token_ids) > max_given:
            raise BadRequest(
                "input_ids",
                f"input_ids takes at most {max_given} ids to truncate, got {len(token_ids)}",
            )
        return list(token_ids)
    check_prompt_length(len(token_ids), limits)
    return list(token_ids)


def _refuse_fields(request: Message) -> None:
    for field, _ in request.ListFields():
        if field.name in REFUSED_FIELDS[request.DESCRIPTOR.name]:
            raise BadRequest(field.name, f"{field.name} is not supported yet")
