"""From the wire's words for sampling to `SamplingParams`; ranges are checked by `weft.core.validate`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from weft.core.errors import BadRequest
from weft.core.params import IN_BODIES
from weft.core.structured import validate_structured_outputs
from weft.core.types import SamplingParams, StructuredOutputsParams
from weft.schema.sampling import ResponseFormat, SamplingFields

_SAME = tuple(parameter.name for parameter in IN_BODIES)
_GUIDED = ("json", "json_object", "regex", "choice", "grammar")


def to_params(
    fields: SamplingFields,
    defaults: Mapping[str, float | int],
    *,
    max_tokens: int | None,
    logprobs: int | None,
) -> SamplingParams:
    """What `fields` ask for; what they leave open comes from `defaults`, the model's own.

    `max_tokens` and `logprobs` mean something else in every API.
    """
    given = {name: value for name in _SAME if (value := getattr(fields, name)) is not None}
    return SamplingParams(
        **{**defaults, **given},
        max_tokens=max_tokens,
        logprobs=logprobs,
        structured_outputs=to_constraint(fields),
    )


def to_constraint(fields: SamplingFields) -> StructuredOutputsParams | None:
    """What the answer has to look like; `BadRequest` for two wishes at once."""
    wishes = dict(_wishes(fields))
    if len(wishes) > 1:
        names = list(wishes)
        raise BadRequest(
            names[1], f"only one of {' and '.join(names)} can decide what the answer looks like"
        )
    if fields.guided_whitespace_pattern is not None and not wishes.keys() & {
        "guided_json",
        "guided_json_object",
    }:
        raise BadRequest(
            "guided_whitespace_pattern", "guided_whitespace_pattern goes with guided_json"
        )
    for name, wish in wishes.items():
        try:
            validate_structured_outputs(wish)
        except BadRequest as error:
            raise BadRequest(name, f"{name}: {error}") from error
        return wish
    return None


def _wishes(fields: SamplingFields) -> list[tuple[str, StructuredOutputsParams]]:
    """Every constraint that is asked for, with the field that does."""
    wishes: list[tuple[str, StructuredOutputsParams | None]] = [
        ("structured_outputs", fields.structured_outputs),
        ("response_format", _of_format(fields.response_format)),
    ]
    for kind in _GUIDED:
        value: Any = getattr(fields, f"guided_{kind}")
        if value is not None and value is not False:
            wishes.append((f"guided_{kind}", _guided(kind, value, fields)))
    if fields.structural_tag is not None:
        tag = StructuredOutputsParams(structural_tag=fields.structural_tag)
        wishes.append(("structural_tag", tag))
    return [(name, wish) for name, wish in wishes if wish is not None]


def _guided(kind: str, value: object, fields: SamplingFields) -> StructuredOutputsParams:
    pattern = fields.guided_whitespace_pattern if kind.startswith("json") else None
    return msgspec.convert({kind: value, "whitespace_pattern": pattern}, StructuredOutputsParams)


def _of_format(asked: ResponseFormat | None) -> StructuredOutputsParams | None:
    if asked is None:
        return None
    match asked.type:
        case "text":
            return None
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "json_schema":
            schema = None if asked.json_schema is None else asked.json_schema.schema
            if schema is None:
                raise BadRequest(
                    "response_format",
                    "response_format of type json_schema needs json_schema.schema",
                )
            return StructuredOutputsParams(json=schema)
        case "structural_tag":
            given = {key: value for key, value in msgspec.to_builtins(asked).items() if value}
            return StructuredOutputsParams(structural_tag=msgspec.json.encode(given).decode())
    raise BadRequest(
        "response_format",
        "response_format.type must be text, json_object, json_schema or structural_tag, "
        f"got {asked.type[:40]!a}",
    )
