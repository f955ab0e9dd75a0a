"""OpenAI's paths: chat, completions, embeddings, responses, conversations, images; and /render."""

from dataclasses import replace
from typing import Final

import msgspec

from weft.epp.decision.request import InferenceRequest, Prompt
from weft.epp.parsers.json_body import (
    ABSENT,
    UNREADABLE,
    PromptField,
    content_text,
    decode_body,
    is_given,
    joined_text,
    raw_text,
    rename_model,
    require_model,
    to_prompts,
)
from weft.epp.parsers.parser import Call, Dialect, Reads, malformed

__all__ = ["OpenAiParser", "PromptField", "chat_prompt", "parse_chat"]

CHAT: Final = "chat/completions"
COMPLETIONS: Final = "completions"


class Message(msgspec.Struct):
    """A message of a chat, or an item of the Responses API."""

    role: str = ""
    type: str = ""
    content: str | list[msgspec.Raw] | None = None
    tool_calls: msgspec.Raw = ABSENT
    arguments: str | None = None
    output: msgspec.Raw = ABSENT

    def text(self) -> str:
        """What the model is shown of it, near enough to compare prefixes."""
        rest = raw_text(self.tool_calls) + (self.arguments or "") + raw_text(self.output)
        return f"{self.role or self.type}{content_text(self.content)}{rest}"


class Body(msgspec.Struct):
    """What routing needs to know of any of these bodies; each path demands its own members."""

    model: str | None = None
    messages: list[Message] | None = None
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    items: list[Message] | None = None
    instructions: str | None = None
    tools: msgspec.Raw = ABSENT
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    cache_salt: str | None = None

    @property
    def max_new_tokens(self) -> int | None:
        """How long the answer may get, by whichever name it was given."""
        for limit in (self.max_completion_tokens, self.max_tokens, self.max_output_tokens):
            if limit is not None:
                return limit
        return None


_body = msgspec.json.Decoder(Body)
_text = msgspec.json.Decoder(str)
_items = msgspec.json.Decoder(list[Message])


class OpenAiParser:
    """Claims OpenAI's paths wherever they are mounted."""

    type = "openai-parser"
    suffixes = (
        CHAT,
        COMPLETIONS,
        "embeddings",
        "responses",
        "conversations",
        "images/generations",
        f"{CHAT}/render",
        f"{COMPLETIONS}/render",
    )
    model_header = None
    dialect = Dialect.OPENAI

    def reads(self, path: str) -> Reads:
        """The prompt is in the body."""
        del path
        return Reads.BODY

    def parse(self, call: Call) -> InferenceRequest:
        """The request behind one of the paths; it alone says which members there must be."""
        body = decode_body(_body, call.body)
        return to_request(call, self.type, body, _prompts(call.path.removesuffix("/render"), body))

    def rename(self, call: Call, model: str) -> bytes:
        """The model is a member of the top object."""
        return rename_model(call.body, model)


def to_request(
    call: Call, parser: str, body: Body, prompts: tuple[Prompt, ...]
) -> InferenceRequest:
    """The request of a body that was understood."""
    return replace(
        call.to_request(parser),
        model=require_model(body.model),
        prompts=prompts,
        cache_salt=body.cache_salt or "",
        is_streaming=bool(body.stream),
        max_tokens=body.max_new_tokens,
    )


def parse_chat(call: Call, parser: str) -> InferenceRequest:
    """A chat, whatever the path says."""
    body = decode_body(_body, call.body)
    return to_request(call, parser, body, (chat_prompt(body),))


def chat_prompt(body: Body) -> Prompt:
    """Tools, then each message."""
    if not body.messages:
        raise malformed("messages must be a list with at least one message")
    return _joined(body, body.messages)


def _prompts(path: str, body: Body) -> tuple[Prompt, ...]:
    if path.endswith(CHAT):
        return (chat_prompt(body),)
    match path.rsplit("/", 1)[-1]:
        case "completions" | "generations":
            if not is_given(body.prompt):
                raise malformed("prompt not found in request body")
            return to_prompts(body.prompt, "prompt")
        case "embeddings" if body.messages:
            return (chat_prompt(body),)
        case "embeddings":
            if not is_given(body.input):
                raise malformed("input not found in request body")
            return to_prompts(body.input, "input")
        case "responses":
            return (_responses_prompt(body),)
        case _:
            if body.items is None:
                raise malformed("items not found in request body")
            return (_joined(body, body.items),)


def _responses_prompt(body: Body) -> Prompt:
    if not is_given(body.input):
        raise malformed("input not found in request body")
    if bytes(memoryview(body.input)[:1]) == b'"':
        text = decode_body(_text, bytes(memoryview(body.input)))
        return joined_text((raw_text(body.tools), body.instructions or "", "user", text))
    return _joined(body, decode_body(_items, bytes(memoryview(body.input))))


def _joined(body: Body, messages: list[Message]) -> Prompt:
    head = (raw_text(body.tools), body.instructions or "")
    try:
        return joined_text((*head, *(message.text() for message in messages)))
    except UNREADABLE as err:
        raise malformed(f"content must be a text or a list of parts: {err}") from err
