"""Anthropic's Messages API, and its counter of tokens."""

from dataclasses import replace

import msgspec

from weft.epp.decision.request import InferenceRequest
from weft.epp.parsers.json_body import (
    ABSENT,
    UNREADABLE,
    content_text,
    decode_body,
    joined_text,
    raw_text,
    rename_model,
    require_model,
)
from weft.epp.parsers.parser import Call, Dialect, Reads, malformed


class Message(msgspec.Struct):
    """A turn of the conversation."""

    role: str = ""
    content: str | list[msgspec.Raw] | None = None


class Body(msgspec.Struct):
    """What routing needs to know of it."""

    model: str | None = None
    messages: list[Message] | None = None
    system: str | list[msgspec.Raw] | None = None
    tools: msgspec.Raw = ABSENT
    stream: bool | None = None
    max_tokens: int | None = None


_body = msgspec.json.Decoder(Body)


class AnthropicParser:
    """Claims the messages paths."""

    type = "anthropic-parser"
    suffixes = ("messages", "messages/count_tokens")
    model_header = None
    dialect = Dialect.ANTHROPIC

    def reads(self, path: str) -> Reads:
        """The prompt is in the body."""
        del path
        return Reads.BODY

    def parse(self, call: Call) -> InferenceRequest:
        """Tools, the system's text, then each message."""
        body = decode_body(_body, call.body)
        if not body.messages:
            raise malformed("messages must be a list with at least one message")
        try:
            turns = [turn.role + content_text(turn.content) for turn in body.messages]
            prompt = joined_text((raw_text(body.tools), content_text(body.system), *turns))
        except UNREADABLE as err:
            raise malformed(f"content must be a text or a list of blocks: {err}") from err
        return replace(
            call.to_request(self.type),
            model=require_model(body.model),
            prompts=(prompt,),
            is_streaming=bool(body.stream),
            max_tokens=body.max_tokens,
        )

    def rename(self, call: Call, model: str) -> bytes:
        """The model is a member of the top object."""
        return rename_model(call.body, model)
