"""A conversation turn as values: the request (`Turn`) and its results (`TurnEvent`).

Each API converts its body to a `Turn`, and `TurnEvent`s to its own events, in functions without side effects. An
answer in one piece is the sum of the same events, so streams and whole answers cannot differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from weft.core.values.types import PositionLogprobs, RequestOptions, SamplingParams
from weft.text.parsers.parts import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call.

    `parameters` is its JSON schema. If it `is_strict`, a call is forced only if a grammar can enforce the whole
    schema. If it `is_in_message`, its definition is in a message instead of the prompt's list of tools.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    is_strict: bool = False
    is_in_message: bool = False


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The model must call this tool."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A request for the next message. `messages` are in OpenAI's form, without tools.

    `weft.web.chat` sets `params.output_kind`, the constraints for forced tool calls, the parameters that parsers need,
    and the tokenization options in `options`; the caller sets everything else. `chat_template` replaces the model's
    chat template. With a `length_penalty`, the turn is a beam search with `n` beams. If `is_streamed` is False, each
    answer arrives as one delta at its end. `names` maps parameter names to the names that the request body has for
    them.
    """

    options: RequestOptions
    messages: Sequence[Mapping[str, Any]]
    params: SamplingParams
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    call_id_prefix: str = "chatcmpl-tool-"
    documents: Sequence[Mapping[str, Any]] | None = None
    chat_template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    include_reasoning: bool = True
    is_streamed: bool = True
    truncation_side: str | None = None
    cache_salt: str | None = None
    length_penalty: float | None = None
    mm_processor_kwargs: Mapping[str, Any] | None = None
    names: Mapping[str, str] = field(default_factory=dict)


TurnReason: TypeAlias = Literal["stop", "length", "tool_calls", "abort", "repetition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """The first event of every turn: the prompt is known, and the engine has accepted the request."""

    prompt: str
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0


class TurnDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The new part of the answer with this `index`. Tool calls already have ids.

    `finish_reason` is set once an answer, in its last delta: "tool_calls" where calls were made and
    not named by the caller. `num_reasoning_tokens` of its tokens are reasoning, marks included.
    """

    index: int
    parts: list[Part]
    token_ids: list[int]
    num_reasoning_tokens: int = 0
    logprobs: Sequence[PositionLogprobs] | None = None
    finish_reason: TurnReason | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last event of every turn without an error."""

    num_cached_tokens: int
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    kv_transfer_params: dict[str, Any] | None = None


TurnEvent: TypeAlias = Began | TurnDelta | Ended
