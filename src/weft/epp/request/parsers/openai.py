"""Parser of OpenAI's paths (chat, completions, embeddings, responses, conversations, batches, images) and /render."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import msgspec

from weft.core.checks.object_ids import store_of
from weft.epp.request.parsers.json_body import (
    UNREADABLE,
    Content,
    JsonParser,
    decode_body,
    decode_member,
    is_given,
    raw_text,
    to_prompts,
)
from weft.epp.request.parsers.loose_json import ABSENT, to_flag, to_text, to_whole
from weft.epp.request.parsers.parser import Call, Dialect, malformed, unscheduled
from weft.epp.request.values import InferenceRequest, Prompt, Refused

CHAT: Final = "chat/completions"
COMPLETIONS: Final = "completions"
RESPONSES: Final = "responses"
CONVERSATIONS: Final = "conversations"
COMPACT: Final = f"{RESPONSES}/compact"
INPUT_TOKENS: Final = f"{RESPONSES}/input_tokens"
BATCHES: Final = "/v1/batches"  # not Anthropic's /v1/messages/batches, whose bodies name no object


class Message(msgspec.Struct):
    """A message of a chat, or an item of the Responses API."""

    id: msgspec.Raw = ABSENT
    approval_request_id: msgspec.Raw = ABSENT
    role: msgspec.Raw = ABSENT
    type: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT  # a text, or a list of parts
    tool_calls: msgspec.Raw = ABSENT
    arguments: msgspec.Raw = ABSENT
    output: msgspec.Raw = ABSENT

    def add_to(self, content: Content) -> None:
        """Adds the message to the prompt, roughly as the model sees it: enough to compare prefixes."""
        content.add_text(to_text(self.role) or to_text(self.type))
        content.add(self.content)
        rest = raw_text(self.tool_calls) + to_text(self.arguments) + raw_text(self.output)
        content.add_text(rest)


class Body(msgspec.Struct):
    """The members of OpenAI's request bodies that routing needs. Each path requires some of them."""

    model: str | None = None
    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    prompt_embeds: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    items: msgspec.Raw = ABSENT
    instructions: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    stream: msgspec.Raw = ABSENT
    max_tokens: msgspec.Raw = ABSENT
    max_completion_tokens: msgspec.Raw = ABSENT
    max_output_tokens: msgspec.Raw = ABSENT
    cache_salt: msgspec.Raw = ABSENT
    previous_response_id: msgspec.Raw = ABSENT
    conversation: msgspec.Raw = ABSENT  # an id, or an object with it
    input_file_id: msgspec.Raw = ABSENT

    @property
    def max_new_tokens(self) -> int | None:
        """Returns the maximum number of output tokens, which has several names."""
        given = (self.max_completion_tokens, self.max_tokens, self.max_output_tokens)
        limits = (to_whole(raw) for raw in given)
        return next((limit for limit in limits if limit is not None), None)


_USER = msgspec.Raw(b'"user"')
_body = msgspec.json.Decoder(Body)
_messages = msgspec.json.Decoder(list[Message])


class OpenAiParser(JsonParser):
    """Parses requests to OpenAI's paths, under any path prefix."""

    type = "openai-parser"
    suffixes = (
        CHAT,
        COMPLETIONS,
        "embeddings",
        RESPONSES,
        COMPACT,
        INPUT_TOKENS,
        BATCHES,
        CONVERSATIONS,
        "images/generations",
        f"{CHAT}/render",
        f"{COMPLETIONS}/render",
    )
    dialect = Dialect.OPENAI

    def parse(self, call: Call) -> InferenceRequest:
        """Parses the body. The path decides which members are required."""
        if call.path.endswith((INPUT_TOKENS, BATCHES)):
            return self._uncomputed(call, self._of_named_objects)
        if call.path.endswith(CONVERSATIONS):
            return self._uncomputed(call, self._of_conversation)
        body = decode_body(_body, call.body)
        path = call.path.removesuffix("/render")
        request = to_request(call, self.type, body, *_prompts(path, body))
        if path != call.path:  # a rendered prompt is not computed, so no cache will hold it
            request = replace(request, prompts=(), media=())
        if path.endswith((RESPONSES, COMPACT)):
            request = replace(request, store=_named_store(body) or call.store)
        return request

    def _uncomputed(self, call: Call, read: Callable[[Call], InferenceRequest]) -> InferenceRequest:
        """Returns the request of a path that computes no prompt. A body that cannot be read goes to any endpoint, which
        refuses it.
        """
        try:
            return read(call)
        except Refused as refused:
            if refused.status != 400:
                raise
            return unscheduled(call, self.type)

    def _of_named_objects(self, call: Call) -> InferenceRequest:
        """Returns a request that any endpoint serves that has the objects which the body names."""
        store = _named_store(decode_body(_body, call.body))
        return replace(unscheduled(call, self.type), store=store or call.store)

    def _of_conversation(self, call: Call) -> InferenceRequest:
        """Returns the request that creates a conversation, possibly without a model and without items."""
        body = decode_body(_body, call.body)
        items = decode_member(_messages, body.items, "items") or []
        request = to_request(call, self.type, body, *_joined(body, items) if items else ((), ()))
        return replace(request, needs_model=False)


class _Object(msgspec.Struct):
    """An object of which only the id is read."""

    id: msgspec.Raw = ABSENT


_object = msgspec.json.Decoder(_Object)
# Types of input items that stand for a stored item.
_REFERENCES: Final = ("item_reference", "mcp_approval_response")


def _named_store(body: Body) -> str:
    """Returns the name of the store that has all objects which a body names; "" if it names none."""
    ids = [to_text(body.previous_response_id), to_text(body.input_file_id)]
    if bytes(memoryview(body.conversation)[:1]) == b"{":
        ids.append(to_text(decode_body(_object, bytes(body.conversation)).id))
    else:
        ids.append(to_text(body.conversation))
    stores = {store for each in (*ids, *_referred(body.input)) if (store := store_of(each))}
    if len(stores) > 1:
        raise malformed(
            "the request names objects of several servers, and no server has all of them"
        )
    return next(iter(stores), "")


def _referred(items: msgspec.Raw) -> Iterator[str]:
    """Yields the ids of the stored items that an input refers to."""
    text = bytes(items)
    if text[:1] != b"[" or not any(kind.encode() in text for kind in _REFERENCES):
        return
    for item in decode_member(_messages, items, "input") or ():
        if to_text(item.type) in _REFERENCES:
            yield to_text(item.id)
            yield to_text(item.approval_request_id)


def to_request(
    call: Call, parser: str, body: Body, prompts: tuple[Prompt, ...], media: tuple[str, ...]
) -> InferenceRequest:
    """Returns the request of a parsed body."""
    return replace(
        call.to_request(parser),
        model=body.model or "",
        needs_model=True,
        prompts=prompts,
        media=media,
        cache_salt=to_text(body.cache_salt),
        is_streaming=to_flag(body.stream),
        max_tokens=body.max_new_tokens,
    )


def parse_chat(call: Call, parser: str) -> InferenceRequest:
    """Parses a chat body of any path."""
    body = decode_body(_body, call.body)
    return to_request(call, parser, body, *_chat(body))


# Prompts, and the media in them.
_Prompts = tuple[tuple[Prompt, ...], tuple[str, ...]]


def _chat(body: Body) -> _Prompts:
    """Returns the prompt of a chat: the tools, then each message."""
    messages = decode_member(_messages, body.messages, "messages")
    if not messages:
        raise malformed("messages must be a list with at least one message")
    return _joined(body, messages)


def _prompts(path: str, body: Body) -> _Prompts:
    if path.endswith(CHAT):
        return _chat(body)
    match path.rsplit("/", 1)[-1]:
        case "completions" | "generations":
            if is_given(body.prompt):
                return to_prompts(body.prompt, "prompt"), ()
            if is_given(body.prompt_embeds):
                return (), ()
            raise malformed("prompt not found in request body")
        case "embeddings" if is_given(body.messages):
            return _chat(body)
        case "embeddings":
            if not is_given(body.input):
                raise malformed("input not found in request body")
            return to_prompts(body.input, "input"), ()
        case "compact" if not is_given(body.input):
            return (), ()
        case _:  # "responses" or "compact"
            return _responses_prompt(body)


def _responses_prompt(body: Body) -> _Prompts:
    if not is_given(body.input):
        raise malformed("input not found in request body")
    if bytes(memoryview(body.input)[:1]) == b'"':
        return _joined(body, [Message(role=_USER, content=body.input)])
    return _joined(body, decode_member(_messages, body.input, "input") or [])


def _joined(body: Body, messages: list[Message]) -> _Prompts:
    content = Content()
    content.add_text(raw_text(body.tools) + to_text(body.instructions))
    try:
        for message in messages:
            message.add_to(content)
    except UNREADABLE as err:
        raise malformed(f"content must be a text or a list of parts: {err}") from err
    return (content.prompt(),), tuple(content.media)
