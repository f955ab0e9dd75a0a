"""Sampling and stop fields, as every API that extends OpenAI's accepts them; null is the same as absent."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from weft.core.values.params import IN_BODIES, OF_DRAWS, PENALTIES, Parameter
from weft.core.values.types import StructuredOutputsParams


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The field `json_schema` of a response format. Grammars enforce the schema also if `strict` is false."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The format that the answer must have. `structures`, `triggers` and `format` belong to structural tags."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


def _described(parameter: Parameter) -> Any:
    """Returns the type of a parameter with its range for OpenAPI; `weft.core.checks.validate` checks the range for
    every API.
    """
    param, kind = parameter.param, parameter.kind
    if param.high is None:
        return parameter.type | None
    low = "exclusiveMinimum" if param.above else "minimum"
    schema = {low: param.low, "maximum": param.high}
    if param.help is not None:
        schema["description"] = param.help
    return Annotated[kind, msgspec.Meta(extra_json_schema=schema)] | None


def _struct_of(name: str, parameters: Iterable[Parameter]) -> Any:
    fields = [(parameter.name, _described(parameter), None) for parameter in parameters]
    return msgspec.defstruct(name, fields, frozen=True, kw_only=True)


if TYPE_CHECKING:
    DrawFields = msgspec.Struct
    ParameterFields = msgspec.Struct
    PenaltyFields = msgspec.Struct
else:
    DrawFields = _struct_of("DrawFields", OF_DRAWS)
    ParameterFields = _struct_of("ParameterFields", IN_BODIES)
    PenaltyFields = _struct_of("PenaltyFields", PENALTIES)


class SamplingFields(ParameterFields, frozen=True, kw_only=True):
    """Fields of `weft.core.values.types.SamplingParams` under their wire names, and older spellings.

    Those that bodies hold as they are come with `ParameterFields`; what code reads by name, or JSON
    writes in its own way, is written out.
    """

    n: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    logit_bias: dict[str, float] | None = None
    truncation_side: str | None = None
    # The form of the answer; at most one of these fields.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsParams | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    guided_whitespace_pattern: str | None = None
    structural_tag: str | None = None
    # Beam search instead of sampling.
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    # Code from callers; refused.
    logits_processors: list[Any] | None = None
    vllm_xargs: dict[str, Any] | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationFields(SamplingFields, frozen=True, kw_only=True):
    """Fields that chat and text completions share besides sampling."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_offsets: bool | None = None
    return_weight_versions: bool | None = None
    mm_payload: str | None = None
    return_mm_kwargs: bool | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    moderation: Any = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None
