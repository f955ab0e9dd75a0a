"""From a turn to a prompt that is known to fit: check the messages, render, tokenise."""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from weft.core.checks.validate import Limits
from weft.core.errors import BadRequest, ContextLengthExceeded, Key, Unsupported
from weft.core.values.media import PROCESSOR_KWARGS, Media, MediaConfig
from weft.core.values.prompts import EmbedsPart, Part, Prompt, PromptType, TextPart
from weft.core.values.speech import NO_GENERATION
from weft.core.values.types import Request, RequestOptions, SamplingParams
from weft.text.chat_media import take_media
from weft.text.content import spelled_out
from weft.text.prompt_embeds import FIELD, check_enabled, read_base64
from weft.text.templates.chat import ChatTemplate, RequestTemplates
from weft.text.templates.render_processes import Rendering, RenderProcesses
from weft.web.chat.tools import listed_tools, template_tools
from weft.web.chat.turn import Turn
from weft.web.served import Served

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_PLAIN_ROLES = ("system", "user", "assistant")
_PLAIN_KEYS = {"role", "content"}
_EMBEDS_KEYS = {"type", "data"}
_TEXTS = ("tool_call_id", "name", "reasoning", "reasoning_content", "refusal")


async def render(served: Served, turn: Turn) -> str:
    """Renders the conversation with the model's template or the request's."""
    processes = render_processes(served, turn.chat_template)
    text, _ = await processes.run_soon(lambda: (_rendering(served, turn), None))
    return text


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation, with its media, and its embeddings by the markers in the text."""

    text: str
    embeds: Mapping[str, EmbedsPart]
    media: Media | None

    def to_prompt(self, cache_salt: str | None) -> PromptType:
        """Returns the prompt for the engine."""
        prompt = _join_embeds(self.text, self.embeds) if self.embeds else self.text
        if self.media is not None:
            whole = Prompt(parts=(TextPart(prompt),)) if isinstance(prompt, str) else prompt
            prompt = msgspec.structs.replace(whole, media=self.media)
        return prompt if cache_salt is None else with_salt(prompt, cache_salt)


async def render_turn(served: Served, turn: Turn) -> Rendered:
    """`render`, of a conversation that may have parts which are no text."""

    def begin() -> tuple[Rendering, tuple[dict[str, EmbedsPart], Media | None]]:
        if not turn.mm_processor_kwargs and all(map(_is_plain, turn.messages)):
            return _rendering(served, turn, are_plain=True), ({}, None)
        bare, embeds = _take_embeds(turn, served.client.info.limits)
        bare, media = _take_media(bare, served.client.model_config.media)
        return _rendering(served, bare), (embeds, media)

    text, apart = await render_processes(served, turn.chat_template).run_soon(begin)
    return Rendered(text, *apart)


def _take_media(turn: Turn, config: MediaConfig | None) -> tuple[Turn, Media | None]:
    """The turn with placeholders instead of media, and the media; unchanged if the model accepts no media."""
    if config is None:
        if turn.mm_processor_kwargs:
            raise BadRequest(PROCESSOR_KWARGS, f"{PROCESSOR_KWARGS}: this model reads text only")
        return turn, None
    messages, media = take_media(turn.messages, turn.mm_processor_kwargs)
    if media is not None and turn.length_penalty is not None:
        raise BadRequest("use_beam_search", "use_beam_search does not go with media")
    return replace(turn, messages=messages), media


def trusted_template(served: Served, source: str | None) -> str | None:
    """The template of a request; raises `BadRequest` if the server does not accept templates of requests."""
    if source is not None and served.request_templates is None:
        raise BadRequest(
            "chat_template",
            "chat_template must be absent: the model's own is used, unless the server is started "
            "with --trust-request-chat-template",
        )
    return source


def render_processes(served: Served, source: str | None) -> RenderProcesses:
    """The processes that render a conversation; raises `BadRequest` if there is no template."""
    templates: RequestTemplates | ChatTemplate | None = served.chat_template
    if trusted_template(served, source) is not None:
        templates = served.request_templates
    if templates is None:
        speech = served.client.model_config.speech
        if speech is not None and speech.is_only:
            raise Unsupported(NO_GENERATION)
        raise BadRequest(
            "messages", "this model has no chat template; use /v1/completions, or a server with one"
        )
    return templates.processes


def find_template(served: Served, source: str | None) -> ChatTemplate:
    """The template to render with: the request's, or else the model's. May take long."""
    if source is not None and served.request_templates is not None:
        return served.request_templates.open(source)
    assert served.chat_template is not None, "there are processes for it"
    return served.chat_template


def _rendering(served: Served, turn: Turn, *, are_plain: bool = False) -> Rendering:
    template = find_template(served, turn.chat_template)
    messages = turn.messages if are_plain else template_messages(turn.messages, template.source)
    is_hidden = turn.tool_choice == "none" and served.options.exclude_tools_when_tool_choice_none
    return template.prepare(
        messages,
        tools=None if is_hidden or not turn.tools else template_tools(listed_tools(turn.tools)),
        documents=turn.documents,
        add_generation_prompt=turn.add_generation_prompt,
        continue_final_message=turn.continue_final_message,
        template_kwargs=turn.template_kwargs,
    )


async def prepare(
    served: Served, prompt: PromptType, params: SamplingParams, options: RequestOptions
) -> Request:
    """Makes the engine's request, and raises all errors that can be found before the engine gets it.

    An explicit `max_tokens` that exceeds the context is refused, while the engine itself would end the answer there:
    the caller relied on that number.
    """
    client = served.client
    client.info.check_priority(options.priority)
    request = await client.prepare(prompt, params, options)
    _check_room(len(request.prompt_token_ids), params, client.info.limits)
    return request if options.prefiller is None else await served.prefilled(request, options)


def with_salt(prompt: PromptType, cache_salt: str | None) -> PromptType:
    """The prompt with its cache salt, in the engine's form."""
    if cache_salt is None:
        return prompt
    if isinstance(prompt, Prompt):
        return msgspec.structs.replace(prompt, cache_salt=cache_salt)
    if isinstance(prompt, str):
        return {"prompt": prompt, "cache_salt": cache_salt}
    if isinstance(prompt, dict):
        return {**prompt, "cache_salt": cache_salt}  # type: ignore[return-value]
    return {"prompt_token_ids": prompt, "cache_salt": cache_salt}


def tokenization_kwargs(*, add_special_tokens: bool, truncation_side: str | None) -> dict[str, Any]:
    """The `tokenization_kwargs` for the fields of a body."""
    side = {} if truncation_side is None else {"truncation_side": truncation_side}
    return {"add_special_tokens": add_special_tokens, **side}


def template_messages(
    messages: Sequence[Mapping[str, Any]], template: str
) -> list[Mapping[str, Any]]:
    """The checked messages, in the words that the template knows."""
    if all(map(_is_plain, messages)):
        return list(messages)
    check_messages(messages)
    return [_readable(message, template) for message in messages]


def _is_plain(message: object) -> bool:
    """True for a message with a text and a role that every template knows: it is passed as it is."""
    return (
        isinstance(message, Mapping)
        and message.keys() == _PLAIN_KEYS
        and message["role"] in _PLAIN_ROLES
        and isinstance(message["content"], str)
    )


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises `BadRequest` for a message with an invalid structure."""
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
        _check_texts(message, _TEXTS, where)
        if message.get("tool_calls") is not None:
            _check_calls(message["tool_calls"], where)
        # An assistant's message may have no content: clients send such answers back unchanged.
        if message.get("content") is None and role != "assistant":
            raise BadRequest(
                "messages", f"{where}.content is missing; only an assistant's message goes without"
            )


def _check_calls(calls: object, where: str) -> None:
    if not isinstance(calls, list):
        raise BadRequest("messages", f"{where}.tool_calls must be a list")
    for position, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRequest(
                "messages", f"{where}.tool_calls[{position}].function must be an object with a name"
            )
        _check_texts(call, ("id", "type"), f"{where}.tool_calls[{position}]")
        if not isinstance(function.get("arguments"), str | Mapping | None):
            raise BadRequest(
                "messages",
                f"{where}.tool_calls[{position}].function.arguments must be a string or an object",
            )


def _check_texts(holder: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    """Templates would write a number, or a list, as Python does."""
    for name in names:
        value = holder.get(name)
        if not isinstance(value, str | None):
            raise BadRequest(
                "messages", f"{where}.{name} must be a string, got {type(value).__name__}"
            )


def _readable(message: Mapping[str, Any], template: str) -> Mapping[str, Any]:
    """The message in the words that the template knows."""
    readable = spelled_out(message)
    if message["role"] == "developer" and "developer" not in template:
        readable["role"] = "system"
    reasoning = readable.get("reasoning", readable.get("reasoning_content"))
    if reasoning is not None:
        # Some templates read one name, some the other.
        readable["reasoning"] = readable["reasoning_content"] = reasoning
        # The template of gpt-oss reads a third name, and only in messages with calls and without content.
        if ".thinking" in template and message.get("tool_calls") and not message.get("content"):
            readable["thinking"] = reasoning
    if message.get("content") is None and message.get("refusal"):
        readable["content"] = message["refusal"]
    if not message.get("tool_calls"):
        # Many templates only check whether the key exists.
        readable.pop("tool_calls", None)
    return readable


def _check_room(num_prompt_tokens: int, params: SamplingParams, limits: Limits) -> None:
    max_tokens = params.max_tokens
    if max_tokens is not None and num_prompt_tokens + max_tokens > limits.max_sequence_len:
        raise ContextLengthExceeded(
            "max_tokens",
            (
                (
                    f"this model's maximum context length is {limits.max_sequence_len} tokens, but "
                    f"{num_prompt_tokens + max_tokens} were requested: {num_prompt_tokens} in the prompt and "
                    f"{max_tokens} for the answer ("
                ),
                Key("max_tokens"),
                ")",
            ),
            num_prompt_tokens + max_tokens,
        )


# -- parts of messages that are embeddings ------------------------------------------------------


def _take_embeds(turn: Turn, limits: Limits) -> tuple[Turn, dict[str, EmbedsPart]]:
    """The turn with a mark of text for each part of embeddings, and the embeddings by mark."""
    if not any(_is_embeds(part) for message in turn.messages for part in _parts_of(message)):
        return turn, {}
    check_enabled(limits)
    if turn.length_penalty is not None:
        raise BadRequest("use_beam_search", f"use_beam_search does not go with {FIELD}")
    taken: dict[str, EmbedsPart] = {}
    messages = [_without_embeds(message, taken, limits) for message in turn.messages]
    return replace(turn, messages=messages), taken


def _join_embeds(text: str, taken: Mapping[str, EmbedsPart]) -> str | Prompt:
    """Puts embeddings at their markers in a rendered conversation."""
    pieces = re.split(f"({'|'.join(taken)})", text)
    parts: list[Part] = [taken.get(piece) or TextPart(piece) for piece in pieces if piece]
    if [part for part in parts if isinstance(part, EmbedsPart)] != list(taken.values()):
        raise BadRequest("messages", f"the chat template leaves out, repeats or moves {FIELD}")
    return Prompt(parts=tuple(parts))


def _without_embeds(
    message: Mapping[str, Any], taken: dict[str, EmbedsPart], limits: Limits
) -> Mapping[str, Any]:
    parts = []
    for part in _parts_of(message):
        if _is_embeds(part):
            if set(part) != _EMBEDS_KEYS or not isinstance(part["data"], str):
                raise BadRequest(
                    "messages",
                    f"a part of type {FIELD} must have type and data alone, and data must be base64 text",
                )
            mark = secrets.token_hex(16)
            taken[mark] = read_base64(part["data"], limits)
            parts.append({"type": "text", "text": mark})
        else:
            parts.append(part)
    return {**message, "content": parts} if parts else message


def _is_embeds(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == FIELD


def _parts_of(message: object) -> Sequence[Any]:
    """The parts of a message; None for text, and for an invalid message, which is refused later."""
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list | tuple) else ()
