"""Converts requests of `vllm.Inference`: every field is used, or refused by its name.

Parameters that have the same names as Weft's are found by `PARAMETERS`, and not named here.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from weft.core.checks.validate import Limits, check_prompt_length
from weft.core.config.engine import ModelConfig
from weft.core.errors import BadRequest
from weft.core.values.kv_transfer import to_extra_args
from weft.core.values.params import PARAMETERS
from weft.core.values.prompts import (
    Prompt,
    PromptType,
    TextPart,
    TextPrompt,
    TokensPart,
    TokensPrompt,
)
from weft.core.values.types import OutputKind, SamplingParams, StructuredOutputsParams
from weft.pb import vllm_inference_pb2 as pb
from weft.rpc.convert.inference_media import MEDIA, REFUSED_SOURCES, to_inference_media
from weft.rpc.convert.json_objects import from_struct
from weft.rpc.convert.request import MAX_TOKEN_IDS, shortest

# Weft's names of parameters, with those of the messages.
FIELDS = MappingProxyType(
    {
        "n": "num_sequences",
        "max_tokens": "max_new_tokens",
        "min_tokens": "min_new_tokens",
        "stop": "stop_strings",
        "include_stop_str_in_output": "include_stop_strings",
        "logprobs": "output_candidates",
        "logprob_token_ids": "output_candidates",
        "prompt_logprobs": "prompt_candidates",
        "prompt_token_ids": "token_ids",
    }
)
# Fields that are refused whatever their values are, by message, and the reasons.
REFUSED_OF_INFERENCE: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "vllm.GenerateRequest": {
            "session_id": "no call depends on the one before it; equal prefixes are found by their tokens",
            "kv_hints": "the cache decides by itself",
        },
        "vllm.KVCacheParameters": {"ec_transfer_params": "this engine has no separate encoder"},
        "vllm.EngineReasoningGate": {
            "chat_template_kwargs": "reasoning_ended says whether the reasoning has ended"
        },
        "vllm.MediaItem": REFUSED_SOURCES,
    }
)
_WHOLE_VOCABULARY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parts of an answer that a caller requests."""

    prompt_token_ids: bool
    text: bool
    token_ids: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """A request in Weft's values. `request_id` None: the server makes one. `prompt` reads the input when it is called,
    after the parameters are checked. `reasoning_ended` None: the end of the prompt decides.
    """

    request_id: str | None
    prompt: Callable[[], PromptType]
    params: SamplingParams
    shape: Shape
    lora_name: str | None
    priority: int
    reasoning_ended: bool | None


def to_inference(
    message: pb.GenerateRequest, limits: Limits, model: ModelConfig, *, is_streaming: bool
) -> Inference:
    """Converts a request; refuses only what is specific to this protocol."""
    _refuse_fields(message)
    if message.model:
        model.find_lora(message.model, {})  # adapters have a field of their own
    if message.media and model.media is None:
        raise BadRequest(MEDIA, f"{MEDIA}: this model reads text only")
    if message.watermarking:
        raise BadRequest("watermarking", "watermarking must be absent or false: answers have none")
    gate = message.engine_reasoning_gate
    return Inference(
        request_id=message.request_id or None,
        prompt=partial(_to_prompt, message, limits),
        params=_to_params(message, model.default_sampling_params, is_streaming=is_streaming),
        shape=_to_shape(message.response),
        lora_name=message.lora_name or None,
        priority=message.priority,
        reasoning_ended=gate.reasoning_ended if gate.HasField("reasoning_ended") else None,
    )


def _refuse_fields(message: Message) -> None:
    """Raises `BadRequest` for the first refused field that is set."""
    for owner in (message, *_present(message)):
        for name, reason in REFUSED_OF_INFERENCE.get(owner.DESCRIPTOR.full_name, {}).items():
            if owner.HasField(name) and _says_something(getattr(owner, name)):
                raise BadRequest(name, f"{name} must be absent: {reason}")


def _present(message: Message) -> Iterator[Message]:
    for name in ("kv", "engine_reasoning_gate"):
        if message.HasField(name):
            yield getattr(message, name)


def _says_something(value: Any) -> bool:
    return bool(value.ByteSize() if isinstance(value, Message) else value)


# -- the prompt -------------------------------------------------------------------------------


def _to_prompt(message: pb.GenerateRequest, limits: Limits) -> PromptType:
    salt = message.kv.cache_salt
    text, token_ids = _to_text(message), _to_token_ids(message, limits)
    if message.media:
        part = TextPart(text) if text is not None else TokensPart(token_ids)
        media = to_inference_media(message.media)
        return Prompt(parts=(part,), media=media, cache_salt=salt or None)
    prompt: TextPrompt | TokensPrompt
    prompt = {"prompt": text} if text is not None else {"prompt_token_ids": token_ids}
    if salt:
        prompt["cache_salt"] = salt
    return prompt


def _to_text(message: pb.GenerateRequest) -> str | None:
    """The prompt as text; None if it is token ids."""
    kind = message.WhichOneof("prompt")
    if kind is None:
        raise BadRequest("prompt", "prompt is missing: set text or token_ids")
    if kind != "text":
        return None
    # Read once: protobuf builds the text, up to megabytes, at each access.
    if not (text := message.text):
        raise BadRequest("text", "text must not be empty")
    return text


def _to_token_ids(message: pb.GenerateRequest, limits: Limits) -> list[int]:
    """The prompt as token ids; empty if it is text. Checked by length, before millions of ids are copied."""
    if message.WhichOneof("prompt") != "token_ids":
        return []
    token_ids = message.token_ids.ids
    max_given = max(MAX_TOKEN_IDS, limits.max_model_len)
    if not message.truncate_prompt_tokens:
        check_prompt_length(len(token_ids), limits)
    elif len(token_ids) > max_given:
        raise BadRequest(
            "token_ids",
            f"token_ids takes at most {max_given} ids to truncate, got {len(token_ids)}",
        )
    return list(token_ids)


# -- the parameters ---------------------------------------------------------------------------


def _to_params(
    message: pb.GenerateRequest, defaults: Mapping[str, float | int], *, is_streaming: bool
) -> SamplingParams:
    """Converts the parameters: unset numbers are the model's own defaults, and an unset temperature is 0."""
    stopping, response = message.stopping, message.response
    given = {
        **defaults,
        "temperature": shortest(message.temperature),
        **_same(message.sampling),
        **_same(message.decoding),
        **_same(stopping),
        **_scores_of_output(response),
        **_scores_of_prompt(response),
    }
    if (num_answers := message.sampling.num_sequences) > 1 and not is_streaming:
        raise BadRequest(
            "num_sequences",
            f"num_sequences must be 1 for Generate, whose response has one answer, got {num_answers}; "
            "GenerateStream sends several",
        )
    has_text = _unless_off(response, "output_text")
    return SamplingParams(
        **given,
        n=message.sampling.num_sequences or 1,
        max_tokens=stopping.max_new_tokens or None,
        min_tokens=stopping.min_new_tokens,
        stop=list(stopping.stop_strings) or None,
        include_stop_str_in_output=stopping.include_stop_strings,
        structured_outputs=_to_constraint(message.decoding),
        truncate_prompt_tokens=message.truncate_prompt_tokens or None,
        skip_special_tokens=_unless_off(response, "skip_special_tokens"),
        skip_reading_prefix_cache=message.kv.bypass_prefix_cache,
        extra_args=_to_extra_args(message.kv),
        detokenize=has_text or bool(stopping.stop_strings),
        output_kind=OutputKind.DELTA if is_streaming else OutputKind.FINAL_ONLY,
    )


def _same(message: Message) -> dict[str, Any]:
    """Returns the fields of a message that have the names and meanings of parameters, and are set."""
    return {
        field.name: _plain(field.name, value)
        for field, value in message.ListFields()
        if field.name in PARAMETERS
    }


def _plain(name: str, value: Any) -> Any:
    """Converts a value of protobuf to one of Python; a list is refused by its length before it is copied."""
    if isinstance(value, float):
        return shortest(value)
    if isinstance(value, int):
        return value
    if len(value) > MAX_TOKEN_IDS:
        raise BadRequest(name, f"{name} takes at most {MAX_TOKEN_IDS} ids, got {len(value)}")
    if isinstance(value, Mapping):
        return {key: shortest(number) for key, number in value.items()}
    return [list(item.ids) if isinstance(item, pb.TokenIds) else item for item in value]


def _to_extra_args(message: pb.KVCacheParameters) -> dict[str, Any] | None:
    """Returns the transfer parameters. Routers send the port as text, because a `Struct` has no integers."""
    given = from_struct(message.kv_transfer_params)
    port = given.get("remote_port")
    if isinstance(port, str) and re.fullmatch("[0-9]{1,5}", port):
        given["remote_port"] = int(port)
    return to_extra_args(given)


def _to_constraint(message: pb.DecodingParameters) -> StructuredOutputsParams | None:
    match message.WhichOneof("structured_output"):
        case None:
            return None
        case "choice":
            return StructuredOutputsParams(choice=list(message.choice.choices))
        case "json_object":
            return StructuredOutputsParams(json_object=True) if message.json_object else None
        case kind:
            return StructuredOutputsParams(**{kind: getattr(message, kind)})


def _scores_of_output(response: pb.ResponseOptions) -> dict[str, Any]:
    name = "output_candidates"
    if not response.output_logprobs:
        return _nothing_beside(response, name, "output_logprobs")
    candidates = response.output_candidates
    if candidates.WhichOneof("select") == "token_ids":
        return {"logprob_token_ids": _plain(name, candidates.token_ids.ids)}
    return {"logprobs": _to_count(candidates)}


def _scores_of_prompt(response: pb.ResponseOptions) -> dict[str, Any]:
    name = "prompt_candidates"
    if not response.prompt_logprobs:
        return _nothing_beside(response, name, "prompt_logprobs")
    if response.prompt_candidates.WhichOneof("select") == "token_ids":
        raise BadRequest(name, f"{name} takes top_n or all; token_ids are for output_candidates")
    return {"prompt_logprobs": _to_count(response.prompt_candidates)}


def _nothing_beside(response: pb.ResponseOptions, name: str, needed: str) -> dict[str, Any]:
    if response.HasField(name):
        raise BadRequest(name, f"{name} needs {needed}")
    return {}


def _to_count(candidates: pb.CandidateTokens) -> int:
    """Number of the likeliest tokens that are scored beside the chosen one."""
    return _WHOLE_VOCABULARY if candidates.all else candidates.top_n


def _to_shape(response: pb.ResponseOptions) -> Shape:
    return Shape(
        prompt_token_ids=response.prompt_token_ids,
        text=_unless_off(response, "output_text"),
        token_ids=response.output_token_ids,
    )


def _unless_off(response: pb.ResponseOptions, name: str) -> bool:
    """Value of a field that is true when it is unset."""
    return not response.HasField(name) or bool(getattr(response, name))
