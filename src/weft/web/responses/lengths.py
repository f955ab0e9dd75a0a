"""POST /v1/responses/input_tokens, and POST /v1/responses/compact: the length of a conversation, and a shorter one."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from weft.core.checks.object_ids import new_id
from weft.core.errors import BadRequest
from weft.schema.response_object import (
    CompactedMessage,
    CompactedResponse,
    CompactionItem,
    InputTokens,
    OutputMessage,
    ResponseObject,
)
from weft.schema.responses import InputTokensBody, ResponsesBody
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall
from weft.web.inference.fields import refuse_unsupported
from weft.web.inference.rendered import num_prompt_tokens
from weft.web.items.content_parts import listed_of_chat
from weft.web.items.summary import INSTRUCTION, sealed
from weft.web.responses.create import Creation
from weft.web.responses.unsupported import REFUSED

_OWN = frozenset(InputTokensBody.__struct_fields__) & frozenset(ResponsesBody.__struct_fields__)


class Lengths:
    """The handlers of both calls."""

    def __init__(self, creation: Creation) -> None:
        self._creation = creation

    async def input_tokens(self, call: ModelCall) -> Answer:
        """The number of tokens of a prompt, without an answer"""
        request = await self._creation.prepare(call, _body(call.body))
        try:
            if request.prepared is None:
                raise BadRequest(
                    "input", "input approves calls of tools, whose results are not known yet"
                )
            return InputTokens(input_tokens=num_prompt_tokens(request.prepared.request, "input"))
        finally:
            request.close()

    async def compact(self, call: ModelCall) -> Answer:
        """A shorter conversation: messages of the user, and the model's summary of all before"""
        body = _body(call.body)
        given = body.input
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        instruction = {"role": "user", "content": INSTRUCTION}
        body = msgspec.structs.replace(body, input=[*items, instruction])
        request = await self._creation.prepare(call, body)
        if not (items or request.before):
            request.close()
            raise BadRequest("input", "input is empty; there has to be something to compact")
        messages = request.turn.messages[:-1]
        response = await self._creation.in_one_piece(self._creation.run_of(call, request), body)
        assert response.usage is not None, "a response that has ended has one"
        summary = CompactionItem(id=new_id("cmp"), encrypted_content=sealed(_text(response)))
        return CompactedResponse(
            id=new_id("resp"),
            created_at=response.created_at,
            output=[*_of_user(messages), summary],
            usage=response.usage,
        )


def _body(given: InputTokensBody) -> ResponsesBody:
    """The request for a response that a body is about."""
    refuse_unsupported(given, {name: row for name, row in REFUSED.items() if name in _OWN})
    fields = {name: getattr(given, name) for name in _OWN if name != "input"}
    return ResponsesBody(**fields, input=[] if given.input is None else given.input, store=False)


def _text(response: ResponseObject) -> str:
    """The text of all messages of a response."""
    messages = (item for item in response.output if isinstance(item, OutputMessage))
    return "".join(getattr(part, "text", "") for item in messages for part in item.content)


def _of_user(messages: Iterable[Mapping[str, Any]]) -> Iterator[CompactedMessage]:
    """The messages of the user, as items."""
    for message in messages:
        if message["role"] == "user":
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            yield CompactedMessage(
                id=new_id("msg"), content=[listed_of_chat(part) for part in parts]
            )
