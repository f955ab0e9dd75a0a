"""`SamplingParams` to the wire's message and back.

Numbers and switches stand in fields with their names, as `weft.core.params` lists them; what is
`Carried.OWN` is translated here, name by name.
"""

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

from weft.core.declare import Carried
from weft.core.errors import BadRequest
from weft.core.params import PARAMETERS
from weft.core.structured import kind_of, schema_of
from weft.core.types import OutputKind, SamplingParams, StructuredOutputsParams
from weft.pb import vllm_engine_pb2 as pb

MAX_TOKEN_IDS = 1_000_000
_UINT32_MAX = 2**32 - 1
_FLOAT32 = struct.Struct("<f")

# What they are where the message does not say. A number without presence cannot be told from 0.
_UNSET: dict[str, Any] = {
    p.name: False if p.kind is bool else None if p.is_optional else p.default
    for p in PARAMETERS.values()
    if p.param.wire is Carried.SAME
}


def to_message(params: SamplingParams) -> pb.SamplingParams:
    """Translate checked parameters."""
    message = pb.SamplingParams(**{name: getattr(params, name) for name in _UNSET})
    message.top_k = min(max(params.top_k, 0), _UINT32_MAX)  # below 0 and huge are both "off"
    message.stop.extend(params.stop_strings)
    message.stop_token_ids.extend(params.stop_token_ids or ())
    for token_id, bias in (params.logit_bias or {}).items():
        message.logit_bias[int(token_id)] = bias
    if params.structured_outputs is not None:
        _set_constraint(message, params.structured_outputs)
    return message


def to_params(message: pb.SamplingParams, *, is_streaming: bool) -> SamplingParams:
    """Translate; a number that is unset takes its neutral value. Ranges are not checked here."""
    numbers = _UNSET.copy()
    for field, value in message.ListFields():
        name = field.name
        if name in numbers:
            numbers[name] = _shortest(value) if isinstance(value, float) else value
    return SamplingParams(
        **numbers,
        top_k=message.top_k,
        structured_outputs=_to_structured_outputs(message),
        stop=list(message.stop) or None,
        stop_token_ids=_to_ids("stop_token_ids", message.stop_token_ids) or None,
        logit_bias={key: _shortest(value) for key, value in message.logit_bias.items()} or None,
        # The caller gets token ids; text is made only to search it for stop strings.
        detokenize=bool(message.stop),
        output_kind=OutputKind.DELTA if is_streaming else OutputKind.FINAL_ONLY,
    )


def _to_ids(name: str, token_ids: Sequence[int]) -> list[int]:
    """A copy, refused by length before it is made; how many there may be depends on the vocabulary."""
    if len(token_ids) > MAX_TOKEN_IDS:
        raise BadRequest(name, f"{name} takes at most {MAX_TOKEN_IDS} ids, got {len(token_ids)}")
    return list(token_ids)


def _shortest(value: float) -> float:
    """The shortest decimal with the same 32 bits: the wire's 0.9 is 0.9, not 0.8999999761581421.

    So a request means exactly the same over this wire and over one that carries decimals.
    """
    if not math.isfinite(value) or value.is_integer():
        return value
    bits = _FLOAT32.pack(value)
    for form in ("%.6g", "%.7g", "%.8g"):
        short = float(form % value)
        if _FLOAT32.pack(short) == bits:
            return short
    return value


def _set_constraint(message: pb.SamplingParams, asked: StructuredOutputsParams) -> None:
    kind = kind_of(asked)
    match kind:
        case "json":
            given = asked.json
            message.json_schema = given if isinstance(given, str) else json.dumps(schema_of(given))
        case "choice":
            message.choice.choices.extend(asked.choice or ())
        case _:
            setattr(message, kind, getattr(asked, kind))


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
