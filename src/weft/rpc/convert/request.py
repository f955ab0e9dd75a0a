"""Converts requests from and to protobuf messages; in both directions every field is used, or refused by its name.

Numeric and boolean parameters have message fields of the same names, listed in `weft.core.values.params`; parameters
marked `Carried.OWN` are converted one by one in this module.
"""

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec
from google.protobuf.message import Message

from weft.core.checks.structured import kind_of, schema_of
from weft.core.checks.validate import Limits, check_prompt_length
from weft.core.errors import BadRequest
from weft.core.values.declare import Carried
from weft.core.values.kv_transfer import KEY, Resumption, to_extra_args
from weft.core.values.media import TENSORS, MediaConfig
from weft.core.values.params import PARAMETERS
from weft.core.values.prompts import Prompt, PromptType, TextPart, TokensPart
from weft.core.values.types import OutputKind, Request, SamplingParams, StructuredOutputsParams
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.json_objects import to_json
from weft.rpc.convert.media import REFUSED_PAYLOADS, media_field, to_media, to_media_refs
from weft.rpc.convert.resumption import FIELD as RESUMPTION
from weft.rpc.convert.resumption import to_message as to_resumption_message
from weft.rpc.convert.resumption import to_resumption

MAX_FLUSH_TIMEOUT_S = 3600.0

# Fields that are refused, by message type.
REFUSED_FIELDS = MappingProxyType(
    {
        # The server's operator decides on the path and the content of traces, so these fields are refused.
        "StartProfileRequest": frozenset(common_pb2.StartProfileRequest.DESCRIPTOR.fields_by_name)
        - {"num_steps"},
        "TensorData": REFUSED_PAYLOADS,
    }
)
MAX_TOKEN_IDS = 1_000_000
MAX_TRANSFER_CHARS = 1 << 20  # characters of JSON: sixteen for each block that a request may have
_TRANSFER_JSON = "kv_transfer_params_json"
_UINT32_MAX = 2**32 - 1
_FLOAT32 = struct.Struct("<f")

# Defaults of absent fields. A number without presence cannot be told from 0.
_UNSET: dict[str, Any] = {
    p.name: False if p.kind is bool else None if p.is_optional else p.default
    for p in PARAMETERS.values()
    if p.param.wire is Carried.SAME
}
_INT32 = range(-(2**31), 2**31)
_NOT_CARRIED = tuple(p.name for p in PARAMETERS.values() if p.param.wire is Carried.NOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A `GenerateRequest` converted to Weft's values. If `request_id` is None, the server generates an id.

    `prompt` is a function that reads and checks the input. It is called after the parameters are checked, because
    clients rely on the order of errors. The adapter is named in metadata.
    """

    request_id: str | None
    prompt: Callable[[], PromptType]
    prompt_text: str | None
    params: SamplingParams
    data_parallel_rank: int | None
    is_streaming: bool
    resumption: Resumption | None


def to_generation(
    request: pb.GenerateRequest, limits: Limits, media: MediaConfig | None = None
) -> Generation:
    """Converts a request; refuses only what is specific to this protocol. `media` describes the media that the model
    accepts.
    """
    name = media_field(request)
    if media is None and name is not None:
        raise BadRequest(name, f"{name}: this model reads text only")
    params = to_params(request.sampling_params, is_streaming=request.stream)
    if request.HasField(_TRANSFER_JSON) or request.HasField(KEY):
        params = msgspec.structs.replace(params, extra_args=_to_extra_args(request))
    return Generation(
        request_id=request.request_id or None,
        prompt=partial(_to_prompt, request, params, limits, has_media=name is not None),
        prompt_text=request.tokenized.original_text or None,
        params=params,
        data_parallel_rank=(
            request.data_parallel_rank if request.HasField("data_parallel_rank") else None
        ),
        is_streaming=request.stream,
        resumption=(
            to_resumption(request.weft_resumption) if request.HasField(RESUMPTION) else None
        ),
    )


def _to_extra_args(request: pb.GenerateRequest) -> dict[str, Any] | None:
    """Returns the JSON transfer parameters; the typed field beside them must have the same address."""
    given: Any = {}
    if len(request.kv_transfer_params_json) > MAX_TRANSFER_CHARS:
        raise BadRequest(_TRANSFER_JSON, f"{_TRANSFER_JSON} takes {MAX_TRANSFER_CHARS} characters")
    if request.HasField(_TRANSFER_JSON):
        try:
            given = msgspec.json.decode(request.kv_transfer_params_json, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise BadRequest(_TRANSFER_JSON, f"{_TRANSFER_JSON}: {error}") from None
    if request.HasField(KEY):
        typed = request.kv_transfer_params
        if (given.get("remote_host"), given.get("remote_port")) != (
            typed.remote_host,
            typed.remote_port,
        ):
            raise BadRequest(KEY, f"{KEY} must be absent or say what {_TRANSFER_JSON} does")
    return to_extra_args(given)


def to_flush_timeout(request: common_pb2.FlushCacheRequest) -> float:
    """Timeout of the flush, in seconds."""
    timeout_s = request.timeout_s
    if not (math.isfinite(timeout_s) and 0 <= timeout_s <= MAX_FLUSH_TIMEOUT_S):
        raise BadRequest(
            "timeout_s",
            f"timeout_s must be in [0, {MAX_FLUSH_TIMEOUT_S:g}] seconds, got {timeout_s}",
        )
    return timeout_s


def to_num_steps(request: common_pb2.StartProfileRequest) -> int | None:
    """Number of steps to record; None if the message has none. Refuses all other fields by name."""
    _refuse_fields(request)
    return request.num_steps if request.HasField("num_steps") else None


def _to_prompt(
    request: pb.GenerateRequest, params: SamplingParams, limits: Limits, *, has_media: bool
) -> PromptType:
    media = to_media(request) if has_media else None
    match request.WhichOneof("input"):
        case "text":
            # Read once: protobuf builds the text, up to megabytes, at each access.
            if not (text := request.text):
                raise BadRequest("text", "text must not be empty")
            if media is None:
                return text
            if media.tensors:
                raise BadRequest(TENSORS, f"{TENSORS} needs tokenized: its placeholders are tokens")
            part: TextPart | TokensPart = TextPart(text)
        case "tokenized":
            token_ids = _to_token_ids(request.tokenized, params, limits)
            if media is None:
                return {"prompt_token_ids": token_ids}
            part = TokensPart(token_ids)
        case _:
            raise BadRequest("input", "input is missing: set tokenized or text")
    return Prompt(parts=(part,), media=media)


def _to_token_ids(
    tokenized: pb.TokenizedInput, params: SamplingParams, limits: Limits
) -> list[int]:
    token_ids = tokenized.input_ids
    # Checked by length, before millions of ids are copied.
    if params.truncate_prompt_tokens is not None:
        # The engine truncates, on the side that its tokenizer sets, and checks the rest.
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
    # Not `ListFields`, which copies every field that is set.
    for field in request.DESCRIPTOR.fields:
        name = field.name
        if name not in REFUSED_FIELDS[request.DESCRIPTOR.name]:
            continue
        if request.HasField(name) if field.has_presence else getattr(request, name):
            raise BadRequest(name, f"{name} is not supported yet")


def check_carried(params: SamplingParams) -> None:
    """Refuses params for which the message has no field. Zeros that mean "unset" are out of range."""
    for name in _NOT_CARRIED:
        value = getattr(params, name)
        if value or type(value) is int:  # a budget of 0 counts as set
            raise not_on_this_wire(name)
    if params.seed is not None and params.seed not in _INT32:
        raise BadRequest(
            "seed", f"seed must fit in 32 bits over this connection, got {params.seed}"
        )
    constraint = params.structured_outputs
    if constraint is not None and constraint.whitespace_pattern is not None:
        raise not_on_this_wire("whitespace_pattern")


def to_generate_request(request: Request) -> pb.GenerateRequest:
    """Translate a checked request."""
    message = pb.GenerateRequest(
        request_id=wire_id(request),
        sampling_params=to_message(request.params),
        stream=request.params.output_kind is not OutputKind.FINAL_ONLY,
        data_parallel_rank=request.data_parallel_rank,
    )
    if request.params.extra_args:
        message.kv_transfer_params_json = to_json(KEY, request.params.extra_args[KEY]).decode()
    message.tokenized.input_ids.extend(request.prompt_token_ids)
    message.tokenized.original_text = request.prompt or ""
    if request.resumption is not None:
        message.weft_resumption.CopyFrom(to_resumption_message(request.resumption))
    if request.media is not None:
        message.media_refs.CopyFrom(to_media_refs(request.media))
    return message


def wire_id(request: Request) -> str:
    """Returns the id that a server knows the request by. Each resumption has its own: the server that has lost the
    connection may still run the request under the former id.
    """
    if request.resumption is None:
        return request.request_id
    return f"{request.request_id}+{request.resumption.number}"


def not_on_this_wire(name: str) -> BadRequest:
    """The error for a parameter that only an engine in the same process can get."""
    return BadRequest(name, f"{name} cannot be sent over gRPC")


def to_message(params: SamplingParams) -> pb.SamplingParams:
    """Translate checked parameters."""
    message = pb.SamplingParams(**{name: getattr(params, name) for name in _UNSET})
    # Negative and huge values both mean "off".
    message.top_k = min(max(params.top_k, 0), _UINT32_MAX)
    message.stop.extend(params.stop_strings)
    message.stop_token_ids.extend(params.stop_token_ids or ())
    for token_id, bias in (params.logit_bias or {}).items():
        message.logit_bias[int(token_id)] = bias
    if params.structured_outputs is not None:
        _set_constraint(message, params.structured_outputs)
    return message


def to_params(message: pb.SamplingParams, *, is_streaming: bool) -> SamplingParams:
    """Converts the parameters; unset numbers get their neutral values. Ranges are checked later."""
    numbers = _UNSET.copy()
    for field, value in message.ListFields():
        name = field.name
        if name in numbers:
            numbers[name] = shortest(value) if isinstance(value, float) else value
    return SamplingParams(
        **numbers,
        top_k=message.top_k,
        structured_outputs=_to_structured_outputs(message),
        stop=list(message.stop) or None,
        stop_token_ids=(
            _to_ids("stop_token_ids", message.stop_token_ids) if message.stop_token_ids else None
        ),
        logit_bias={key: shortest(value) for key, value in message.logit_bias.items()} or None,
        # The caller gets token ids; text is needed only to search for stop strings.
        detokenize=bool(message.stop),
        output_kind=OutputKind.DELTA if is_streaming else OutputKind.FINAL_ONLY,
    )


def _to_ids(name: str, token_ids: Sequence[int]) -> list[int]:
    """A copy of the ids; refused by length before copying. The maximum depends on the vocabulary."""
    if len(token_ids) > MAX_TOKEN_IDS:
        raise BadRequest(name, f"{name} takes at most {MAX_TOKEN_IDS} ids, got {len(token_ids)}")
    return list(token_ids)


def shortest(value: float) -> float:
    """Returns the shortest decimal with the same 32 bits: 0.9 from the wire becomes 0.9, not 0.8999999761581421. So
    a request means exactly the same over gRPC as over HTTP, which carries decimals.
    """
    if not math.isfinite(value) or value.is_integer():
        return value
    bits = _FLOAT32.pack(value)
    for form in ("%.6g", "%.7g", "%.8g"):
        short = float(form % value)
        if _FLOAT32.pack(short) == bits:
            return short
    return value


def _set_constraint(message: pb.SamplingParams, constraint: StructuredOutputsParams) -> None:
    kind = kind_of(constraint)
    match kind:
        case "json":
            given = constraint.json
            message.json_schema = given if isinstance(given, str) else json.dumps(schema_of(given))
        case "choice":
            message.choice.choices.extend(constraint.choice or ())
        case _:
            setattr(message, kind, getattr(constraint, kind))


def _to_structured_outputs(
    message: pb.SamplingParams,
) -> StructuredOutputsParams | None:
    match message.WhichOneof("constraint"):
        case None:
            return None
        case "json_schema":
            return StructuredOutputsParams(json=message.json_schema)
        case "choice":
            return StructuredOutputsParams(choice=list(message.choice.choices))
        case kind:
            return StructuredOutputsParams(**{kind: getattr(message, kind)})
