"""From a turn to a prompt that is known to fit: check the messages, render, tokenise."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.core.client import EngineClient
from weft.core.errors import BadRequest, ContextLengthExceeded
from weft.core.types import PromptType, SamplingParams, TokensPrompt
from weft.core.validate import Limits, validate_cache_salt
from weft.web.chat.tools import template_tools
from weft.web.chat.turn import Turn
from weft.web.served import Served

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# What our own answers, sent back, may hold where they have no content.
_IN_PLACE_OF_CONTENT = ("tool_calls", "function_call", "reasoning", "reasoning_content", "refusal")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is given: `params` without what has been done already."""

    text: str | None
    tokens: TokensPrompt
    params: SamplingParams

    @property
    def token_ids(self) -> list[int]:
        """The prompt's tokens."""
        return self.tokens["prompt_token_ids"]


async def render(served: Served, turn: Turn) -> str:
    """The conversation as text, as the model's template writes it."""
    if served.chat_template is None:
        raise BadRequest(
            "messages", "this model has no chat template; use /v1/completions, or a server with one"
        )
    check_messages(turn.messages)
    is_hidden = turn.tool_choice == "none" and served.options.exclude_tools_when_tool_choice_none
    return await asyncio.to_thread(
        served.chat_template.render,
        [_readable(message, served.chat_template.source) for message in turn.messages],
        tools=None if is_hidden else template_tools(turn.tools),
        documents=turn.documents,
        add_generation_prompt=turn.add_generation_prompt,
        continue_final_message=turn.continue_final_message,
        **turn.template_kwargs,
    )


async def tokenise(  # noqa: PLR0913 - what the tokens depend on
    client: EngineClient,
    prompt: PromptType,
    params: SamplingParams,
    request_id: str,
    *,
    add_special_tokens: bool,
    truncation_side: str | None = None,
    cache_salt: str | None = None,
    priority: int = 0,
) -> Prompt:
    """Everything about a request that can be refused before the engine knows of it.

    Unlike the engine, which lets an answer end at the end of the context, an explicit `max_tokens`
    that does not fit is refused: the caller counted on it.
    """
    check_priority(client, priority)
    validate_cache_salt(cache_salt)
    kwargs: dict[str, Any] = {"add_special_tokens": add_special_tokens}
    if truncation_side is not None:
        kwargs["truncation_side"] = truncation_side

    request = await client.input_processor.process_soon(
        prompt, params, request_id, tokenization_kwargs=kwargs, priority=priority
    )
    _check_room(len(request.prompt_token_ids), params, Limits.of(client.vllm_config))
    text = request.prompt
    tokens: TokensPrompt = {"prompt_token_ids": request.prompt_token_ids}
    if text is not None:
        tokens["prompt"] = text
    if cache_salt is not None:
        tokens["cache_salt"] = cache_salt
    return Prompt(text, tokens, msgspec.structs.replace(params, truncate_prompt_tokens=None))


def check_priority(client: EngineClient, priority: int) -> None:
    """A priority means something to an engine that goes by priorities."""
    policy = client.vllm_config.scheduler_config.policy
    if priority != 0 and policy != "priority":
        raise BadRequest(
            "priority",
            f"priority needs a server with --scheduling-policy priority; this one runs {policy}",
            priority,
        )


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise `BadRequest` for a message that no template could take for what it is."""
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        if not isinstance(message, Mapping):
            raise BadRequest("messages", f"{where} must be an object")
        role = message.get("role")
        if role not in ROLES:
            raise BadRequest(
                "messages",
                f"{where}.role must be one of {', '.join(ROLES)}, got {str(role)[:40]!a}",
            )
        _check_calls(message.get("tool_calls"), where)
        is_whole = role == "assistant" and any(message.get(name) for name in _IN_PLACE_OF_CONTENT)
        if message.get("content") is None and not is_whole:
            raise BadRequest(
                "messages",
                f"{where}.content is missing; only an assistant's message goes without, where it has "
                f"{', '.join(_IN_PLACE_OF_CONTENT)}",
            )


def _check_calls(calls: object, where: str) -> None:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise BadRequest("messages", f"{where}.tool_calls must be a list")
    for position, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRequest(
                "messages", f"{where}.tool_calls[{position}].function must be an object with a name"
            )


def _readable(message: Mapping[str, Any], template: str) -> Mapping[str, Any]:
    """The message in the words that the template knows."""
    readable = dict(message)
    if message["role"] == "developer" and "developer" not in template:
        readable["role"] = "system"
    thoughts = message.get("reasoning", message.get("reasoning_content"))
    if thoughts is not None:
        # Templates were written for either name.
        readable["reasoning"] = readable["reasoning_content"] = thoughts
    if isinstance(message.get("content"), list):
        readable["content"] = [_text_part(part) for part in message["content"]]
    elif message.get("content") is None and message.get("refusal"):
        readable["content"] = message["refusal"]
    if not message.get("tool_calls"):
        # Many templates only ask whether it is there.
        readable.pop("tool_calls", None)
    return readable


def _text_part(part: object) -> object:
    """A refusal is what an assistant said, like any text."""
    if isinstance(part, Mapping) and part.get("type") == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    return part


def _check_room(num_prompt_tokens: int, params: SamplingParams, limits: Limits) -> None:
    asked = params.max_tokens
    if asked is not None and num_prompt_tokens + asked > limits.max_sequence_len:
        raise ContextLengthExceeded(
            "max_tokens",
            f"this model's maximum context length is {limits.max_sequence_len} tokens, but "
            f"{num_prompt_tokens + asked} were requested: {num_prompt_tokens} in the prompt and "
            f"{asked} for the answer (max_tokens)",
            num_prompt_tokens + asked,
        )
