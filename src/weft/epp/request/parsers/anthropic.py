"""Parser of Anthropic's Messages API, including its token counting."""

from dataclasses import replace
from typing import Final

import msgspec

from weft.epp.request.parsers.json_body import (
    UNREADABLE,
    Content,
    JsonParser,
    decode_body,
    decode_member,
    raw_text,
)
from weft.epp.request.parsers.loose_json import ABSENT, to_flag, to_text, to_whole
from weft.epp.request.parsers.parser import Call, Dialect, malformed, unscheduled
from weft.epp.request.values import InferenceRequest, Refused


class Message(msgspec.Struct):
    """A message of the conversation."""

    role: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT  # a text, or a list of blocks


class Body(msgspec.Struct):
    """The fields of an Anthropic body that routing needs."""

    model: str | None = None
    messages: msgspec.Raw = ABSENT
    system: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    stream: msgspec.Raw = ABSENT
    max_tokens: msgspec.Raw = ABSENT


_body = msgspec.json.Decoder(Body)
_messages = msgspec.json.Decoder(list[Message])
COUNT_TOKENS: Final = "messages/count_tokens"


class AnthropicParser(JsonParser):
    """Parses requests to the paths of Anthropic's Messages API."""

    type = "anthropic-parser"
    suffixes = ("messages", COUNT_TOKENS)
    dialect = Dialect.ANTHROPIC

    def parse(self, call: Call) -> InferenceRequest:
        """Parses the body. The prompt is the tools, the system text, then each message. A request to count tokens whose
        body cannot be parsed goes to any endpoint.
        """
        try:
            return self._read(call)
        except Refused as refused:
            if refused.status == 400 and call.path.endswith(COUNT_TOKENS):
                return unscheduled(call, self.type)
            raise

    def _read(self, call: Call) -> InferenceRequest:
        body = decode_body(_body, call.body)
        messages = decode_member(_messages, body.messages, "messages")
        if not messages:
            raise malformed("messages must be a list with at least one message")
        content = _content(body, messages)
        # Requests that only count tokens compute nothing, so no cache will hold their prompts.
        is_counted = call.path.endswith(COUNT_TOKENS)
        return replace(
            call.to_request(self.type),
            model=body.model or "",
            needs_model=True,
            prompts=() if is_counted else (content.prompt(),),
            media=() if is_counted else tuple(content.media),
            is_streaming=to_flag(body.stream),
            max_tokens=to_whole(body.max_tokens),
        )


def _content(body: Body, messages: list[Message]) -> Content:
    content = Content()
    try:
        content.add_text(raw_text(body.tools))
        content.add(body.system)
        for turn in messages:
            content.add_text(to_text(turn.role))
            content.add(turn.content)
    except UNREADABLE as err:
        raise malformed(f"content must be a text or a list of blocks: {err}") from err
    return content
