"""Fields that several APIs share: conversion to `SamplingParams`, refused fields, and OpenAI's limits.

Ranges are checked by `weft.core.checks.validate`.
"""

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from weft.core.beam_search import MAX_PENALTY, max_beam_width
from weft.core.checks.scalars import check_number
from weft.core.checks.structured import check_strict, unheld, validate_structured_outputs
from weft.core.checks.validate import LOGIT_BIAS_CLAMP, MAX_STOP_STRINGS, Limits
from weft.core.errors import BadRequest
from weft.core.values.kv_transfer import to_extra_args
from weft.core.values.params import IN_BODIES
from weft.core.values.types import SamplingParams, StructuredOutputsParams
from weft.schema.chat import ChatBody
from weft.schema.responses import ResponsesBody
from weft.schema.sampling import GenerationFields, ResponseFormat, SamplingFields
from weft.web.http.endpoint import Deviation

_SAME = tuple(parameter.name for parameter in IN_BODIES)
_GUIDED = ("json", "json_object", "regex", "choice", "grammar")
MAX_STOPS = 4
_UNLIMITED = -1
_CONSTRAINING = (
    *("structured_outputs", "response_format", "structural_tag", "guided_whitespace_pattern"),
    *(f"guided_{kind}" for kind in _GUIDED),
)
_constraining = attrgetter(*_CONSTRAINING)
_NO_CONSTRAINT = (None,) * len(_CONSTRAINING)

# Accepted with any value: they identify callers or group requests, and do not affect the answer.
LABELS: Mapping[str, str] = {
    "user": "a name for the caller's own records",
    "metadata": "notes for the caller's own records; requests are not stored, so nothing can be searched by them",
    "safety_identifier": "a name for the caller's own records",
    "prompt_cache_key": "every prompt is looked up in the prefix cache, whatever its key",
    "return_mm_kwargs": "media is not rendered, so no endpoint returns any of it",
    "return_token_offsets": "only the render endpoints return offsets",
    "store": "completions are not stored, and no later request can ask for one",
}

# Such fields inside other fields.
INNER_LABELS: Mapping[str, str] = {
    "response_format.json_schema.name": "a name for the caller's own records",
    "response_format.json_schema.description": "a note for the caller's own records",
    "response_format.json_schema.strict": (
        "the answer always follows the schema; with strict, a schema that no grammar can enforce in full is refused"
    ),
    "tools.function.strict": (
        "a forced call always follows its schema, which is held to it as above; one of the model's own "
        "choice is as it writes it"
    ),
}

_NO_BEAMS = "beam search is for OpenAI's chat and text completions"

# By name: the values that have no effect here, and why any other value is refused. Null is always accepted.
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "audio": ((), "this server answers in text"),
    "best_of": ((), "ask for n answers and choose among them"),
    "early_stopping": ((False,), "beam search always continues until no beam can improve"),
    "function_call": (("auto", "none"), "it was replaced by tool_choice"),
    "functions": (([],), "it was replaced by tools"),
    "guided_decoding_backend": (
        ("auto", "guidance", "llguidance"),
        "llguidance is the only backend",
    ),
    "kv_transfer_params": (({},), "KV transfer is for chat and text completions"),
    "length_penalty": ((1.0,), _NO_BEAMS),
    "logits_processors": (([],), "the server does not run code from callers"),
    "mm_payload": (
        ("tensors", "none"),
        "media is not rendered, so render endpoints return no payload of media",
    ),
    "mm_processor_kwargs": (({},), "only messages may contain media"),
    "modalities": ((["text"],), "this server answers in text"),
    "moderation": ((), "no moderation is offered"),
    "prediction": ((), "predicted outputs are not offered"),
    "prompt_cache_options": (({},), "the prefix cache has no options per request"),
    # The value only affects how long a prefix stays cached: a shorter time costs speed and changes no answer.
    "prompt_cache_retention": (("in_memory", "in-memory", "24h"), "the prefix cache is in memory"),
    "return_weight_versions": ((False,), "weights have no versions"),
    "service_tier": (("auto", "default"), "all requests have the same service tier"),
    "suffix": (("",), "suffix is not currently supported"),
    "use_beam_search": ((False,), _NO_BEAMS),
    "vllm_xargs": (({},), "this engine has no further arguments"),
    "web_search_options": (({},), "this server does not search"),
}

# Fields that OpenAI's chat and completions accept, but not with beam search.
REFUSED_BESIDE_BEAMS = {
    name: row
    for name, row in REFUSED.items()
    if row[1] != _NO_BEAMS and name != "kv_transfer_params"
}
# Fields that are refused if the messages contain media.
REFUSED_BESIDE_MEDIA = {
    name: row for name, row in REFUSED_BESIDE_BEAMS.items() if name != "mm_processor_kwargs"
}

# Parameters that mean the same in beam search and sampling; constraints are checked elsewhere.
_OF_BEAMS = frozenset(
    "n max_tokens ignore_eos include_stop_str_in_output skip_special_tokens truncate_prompt_tokens "
    "truncation_side use_beam_search length_penalty early_stopping response_format structured_outputs "
    "guided_json guided_json_object guided_regex guided_choice guided_grammar structural_tag "
    "guided_decoding_backend guided_whitespace_pattern".split()
)


def refuse_unsupported(
    body: msgspec.Struct,
    table: Mapping[str, tuple[tuple[Any, ...], str]] = REFUSED,
    *,
    at: str = "",
    parameter: str | None = None,
) -> None:
    """Raises `BadRequest` for the first field of `body` that requests an unsupported feature.

    `at` is the place of a struct inside a body; errors name the field's path there, or `parameter` if it is given.
    """
    for name, key in zip(body.__struct_fields__, body.__struct_encode_fields__, strict=True):
        if key not in table:
            continue
        value = getattr(body, name)
        neutral, reason = table[key]
        if value is not None and value not in neutral:
            allowed = "".join(f" or {msgspec.json.encode(item).decode()}" for item in neutral)
            path = f"{at}.{key}" if at else key
            raise BadRequest(parameter or path, f"{path} must be absent{allowed}: {reason}", value)


def beyond_openai(fields: SamplingFields | SamplingParams) -> Iterable[Deviation]:
    """Yields deviations from OpenAI's API: more than four stop strings, biases beyond ±100, `store`, and schemas that
    a grammar cannot enforce in full.
    """
    stop, bias = fields.stop, fields.logit_bias
    if isinstance(stop, list) and len(stop) > MAX_STOPS:
        yield Deviation(
            "stop",
            f"stop has {len(stop)} strings; OpenAI's API takes {MAX_STOPS}, this server "
            f"{MAX_STOP_STRINGS}",
        )
    if bias and any(abs(value) > LOGIT_BIAS_CLAMP for value in bias.values()):
        limit = f"{LOGIT_BIAS_CLAMP:g}"
        yield Deviation("logit_bias", f"logit_bias is limited to -{limit} and {limit}")
    if isinstance(fields, GenerationFields) and fields.store:
        yield Deviation("store", "store is ignored: completions are not stored")
    if isinstance(fields, SamplingFields):
        form = None if fields.response_format is None else fields.response_format.json_schema
        if form is not None:
            yield from report_unheld("response_format", form.schema)
        if fields.guided_json is not None:
            yield from report_unheld("guided_json", fields.guided_json)
    if fields.structured_outputs is not None:
        yield from report_unheld("structured_outputs", fields.structured_outputs.json)


def report_unheld(name: str, schema: Mapping[str, Any] | str | None) -> Iterable[Deviation]:
    """Yields the parts of the schema in the field `name` that no grammar enforces."""
    if schema is not None and (places := unheld(schema)):
        yield Deviation(name, f"{name}: no grammar can enforce {places}; an answer may violate it")


def to_params(
    fields: SamplingFields,
    defaults: Mapping[str, float | int],
    *,
    max_tokens: int | None,
    logprobs: int | None,
) -> SamplingParams:
    """Converts `fields` to sampling parameters; absent fields come from `defaults`, the model's own.

    The caller passes `max_tokens` and `logprobs`, which differ between APIs; `max_tokens` -1 means no limit.
    """
    given = {name: value for name in _SAME if (value := getattr(fields, name)) is not None}
    transfer = getattr(fields, "kv_transfer_params", None)
    return SamplingParams(
        **{**defaults, **given},
        max_tokens=None if max_tokens == _UNLIMITED else max_tokens,
        logprobs=logprobs,
        structured_outputs=to_constraint(fields),
        extra_args=transfer and to_extra_args(transfer),
    )


def to_length_penalty(
    limits: Limits, body: GenerationFields, params: SamplingParams
) -> float | None:
    """Returns the length penalty of a beam search; None without one. `BadRequest` for fields that do not combine with
    it.
    """
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    if not body.use_beam_search and penalty == 1.0:
        return None
    if not body.use_beam_search:
        raise BadRequest("length_penalty", "length_penalty needs use_beam_search", penalty)
    check_number("length_penalty", penalty, -MAX_PENALTY, MAX_PENALTY)
    if body.stream:
        raise BadRequest(
            "stream", "stream must be false with use_beam_search: answers come at the end"
        )
    if params.structured_outputs is not None:
        raise BadRequest("use_beam_search", "use_beam_search does not go with a constraint")
    if params.extra_args is not None:
        message = "kv_transfer_params does not go with use_beam_search"
        raise BadRequest("kv_transfer_params", message)
    for name in SamplingFields.__struct_fields__:
        value = getattr(body, name)
        # Beam search samples nothing, like a temperature of 0.
        neutral = (
            None,
            getattr(SamplingParams(), name, None),
            0 if name == "temperature" else None,
        )
        if name not in _OF_BEAMS and value not in neutral:
            raise BadRequest(name, f"{name} does not go with use_beam_search", value)
    widest = max_beam_width(limits)
    if params.n > widest:
        raise BadRequest(
            "n",
            f"n must be at most {widest} with use_beam_search (half of --max-logprobs)",
            params.n,
        )
    return float(penalty)


def num_logprobs(body: ChatBody | ResponsesBody, *, is_on: bool, switch: str) -> int | None:
    """Number of alternatives per token; `switch` names the field that turns logprobs on."""
    if is_on:
        # With ids that the caller chose, their number is known.
        return body.top_logprobs if body.logprob_token_ids else body.top_logprobs or 0
    for name in ("top_logprobs", "logprob_token_ids"):
        if getattr(body, name):
            raise BadRequest(name, f"{name} needs {switch}")
    return None


def template_kwargs(
    effort: str | None, verbosity: str | None, given: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the template's keyword arguments besides the conversation; the caller's own ones win."""
    kwargs: dict[str, Any] = {}
    if effort is not None:
        kwargs["reasoning_effort"] = effort
        if effort == "none":
            kwargs["enable_thinking"] = False
    if verbosity is not None:
        kwargs["verbosity"] = verbosity
    return {**kwargs, **(given or {})}


def to_constraint(fields: SamplingFields) -> StructuredOutputsParams | None:
    """Returns the constraint on the answer; `BadRequest` for two constraints at once."""
    if _constraining(fields) == _NO_CONSTRAINT:
        return None
    constraints = dict(_constraints(fields))
    if len(constraints) > 1:
        names = list(constraints)
        raise BadRequest(
            names[1], f"only one of {' and '.join(names)} can set the form of the answer"
        )
    if fields.guided_whitespace_pattern is not None and not constraints.keys() & {
        "guided_json",
        "guided_json_object",
    }:
        raise BadRequest(
            "guided_whitespace_pattern", "guided_whitespace_pattern goes with guided_json"
        )
    for name, constraint in constraints.items():
        try:
            validate_structured_outputs(constraint)
        except BadRequest as error:
            raise BadRequest(name, f"{name}: {error}") from error
        return constraint
    return None


def _constraints(fields: SamplingFields) -> Iterator[tuple[str, StructuredOutputsParams]]:
    """Yields all constraints that are given, each with its field."""
    if fields.structured_outputs is not None:
        yield "structured_outputs", fields.structured_outputs
    if fields.response_format is not None and fields.response_format.type != "text":
        yield "response_format", _of_format(fields.response_format)
    for kind in _GUIDED:
        value: Any = getattr(fields, f"guided_{kind}")
        if value is not None and value is not False:
            yield f"guided_{kind}", _guided(kind, value, fields)
    if fields.structural_tag is not None:
        yield "structural_tag", StructuredOutputsParams(structural_tag=fields.structural_tag)


def _guided(kind: str, value: object, fields: SamplingFields) -> StructuredOutputsParams:
    pattern = fields.guided_whitespace_pattern if kind.startswith("json") else None
    return msgspec.convert({kind: value, "whitespace_pattern": pattern}, StructuredOutputsParams)


def _of_format(response_format: ResponseFormat) -> StructuredOutputsParams:
    match response_format.type:
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "json_schema":
            form = response_format.json_schema
            schema = None if form is None else form.schema
            if form is not None and form.strict:
                check_strict("response_format", "response_format.json_schema", schema)
            if schema is None:
                raise BadRequest(
                    "response_format",
                    "response_format of type json_schema needs json_schema.schema",
                )
            return StructuredOutputsParams(json=schema)
        case "structural_tag":
            given = {
                key: value for key, value in msgspec.to_builtins(response_format).items() if value
            }
            return StructuredOutputsParams(structural_tag=msgspec.json.encode(given).decode())
    raise BadRequest(
        "response_format",
        "response_format.type must be text, json_object, json_schema or structural_tag, "
        f"got {response_format.type[:40]!a}",
    )
