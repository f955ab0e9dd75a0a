"""Conversations with the official client: their items, responses that continue them, and what is refused."""

import asyncio

import openai
import pytest

from tests.web.openai.calls import client_of
from tests.web.responses.serving_responses import LONG, SLOW
from tests.web.serving import ECHO, SCRIPT, TINY

HELLO = {"type": "message", "role": "user", "content": "hello"}
LAST = "{{ messages | map(attribute='content') | join('|') }}"


async def test_a_conversation_is_made_changed_and_deleted():
    """Its metadata is replaced as a whole."""
    async with client_of(ECHO) as (client, _):
        made = await client.conversations.create(metadata={"a": "b"}, items=[HELLO])
        assert await client.conversations.retrieve(made.id) == made
        changed = await client.conversations.update(made.id, metadata={"c": "d"})
        assert changed.metadata == {"c": "d"}
        assert await client.conversations.retrieve(made.id) == changed
        assert (await client.conversations.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError) as gone:
            await client.conversations.retrieve(made.id)
        assert gone.value.code == "conversation_not_found"
        with pytest.raises(openai.NotFoundError):
            await client.conversations.items.list(made.id)


async def test_items_are_added_paged_and_deleted():
    """In both orders; each has an id of the server's."""
    async with client_of(ECHO) as (client, _):
        made = await client.conversations.create()
        texts = [str(number) for number in range(5)]
        added = await client.conversations.items.create(
            made.id, items=[{**HELLO, "id": "msg_mine", "content": text} for text in texts]
        )
        assert len({item.id for item in added.data} | {"msg_mine"}) == 6
        for order, wanted in (("asc", texts), ("desc", texts[::-1])):
            listed = client.conversations.items.list(made.id, order=order, limit=2)
            assert [item.content[0].text async for item in listed] == wanted
        second = added.data[1]
        assert (
            await client.conversations.items.retrieve(second.id, conversation_id=made.id) == second
        )
        await client.conversations.items.delete(second.id, conversation_id=made.id)
        with pytest.raises(openai.NotFoundError) as gone:
            await client.conversations.items.retrieve(second.id, conversation_id=made.id)
        assert gone.value.code == "item_not_found"
        assert [item.id async for item in client.conversations.items.list(made.id)] == [
            item.id for item in reversed(added.data) if item.id != second.id
        ]


async def test_a_response_continues_its_conversation():
    """Its input and its output become items, streamed or in one piece, stored or not."""
    async with client_of(ECHO, template=LAST) as (client, _):
        made = await client.conversations.create(items=[HELLO])
        first = await client.responses.create(model=ECHO, input="one", conversation=made.id)
        stream = await client.responses.create(
            model=ECHO, input="two", conversation={"id": made.id}, stream=True, store=False
        )
        events = [event async for event in stream]
        listed = client.conversations.items.list(made.id, order="asc")
        items = [item async for item in listed]
    assert first.conversation.id == made.id
    assert first.output_text == "hello|one"
    assert events[-1].response.output_text == "hello|one|hello|one|two"
    assert [item.role for item in items] == ["user", "user", "assistant", "user", "assistant"]
    assert items[2].id == first.output[0].id


async def test_a_conversation_equals_its_items_as_input():
    """Calls and their outputs reach the model in the same form either way."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "rain"}
    items = [HELLO, call, output]
    async with client_of(TINY) as (client, _):
        settings = {"model": "embedded:tiny", "temperature": 0, "max_output_tokens": 8}
        whole = await client.responses.create(**settings, input=[*items, {**HELLO, "content": "x"}])
        made = await client.conversations.create(items=items[:2])
        await client.conversations.items.create(made.id, items=items[2:])
        continued = await client.responses.create(**settings, input="x", conversation=made.id)
        tokens = await client.responses.input_tokens.count(
            model="embedded:tiny", input="x", conversation=made.id
        )
    assert continued.output_text == whole.output_text
    assert continued.usage.input_tokens == whole.usage.input_tokens
    assert tokens.input_tokens > whole.usage.input_tokens  # the answer belongs to it now


async def test_an_answer_that_was_cut_off_adds_nothing():
    """A client that leaves, as in OpenAI's API."""
    async with client_of(SLOW) as (client, served):
        made = await client.conversations.create()
        stream = await client.responses.create(
            model=SLOW, input=LONG, conversation=made.id, stream=True
        )
        await anext(aiter(stream))
        await stream.close()
        while served.client.num_active_requests:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
        assert [item async for item in client.conversations.items.list(made.id)] == []


async def test_what_a_conversation_cannot_hold_is_refused():
    """By the field's name, and nothing is added."""
    async with client_of(ECHO) as (client, _):
        made = await client.conversations.create()
        for items, parameter in (
            ([], "items"),
            ([HELLO] * 21, "items"),
            ([{"type": "message", "role": "nobody", "content": "x"}], "items"),
            ([{"type": "magic"}], "items"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.conversations.items.create(made.id, items=items)
            assert refused.value.param == parameter
        with pytest.raises(openai.BadRequestError) as refused:
            await client.conversations.update(made.id, metadata={"x" * 65: "y"})
        assert refused.value.param == "metadata"
        for query, parameter in (
            ({"limit": 0}, "limit"),
            ({"limit": 101}, "limit"),
            ({"order": "up"}, "order"),
            ({"after": "msg_x"}, "after"),
            ({"include": ["x"]}, "include"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.conversations.items.list(made.id, **query)
            assert refused.value.param == parameter
        assert [item async for item in client.conversations.items.list(made.id)] == []
        with pytest.raises(openai.NotFoundError) as gone:
            await client.responses.create(model=ECHO, input="x", conversation="conv_x")
        assert gone.value.param == "conversation"


async def test_input_tokens_are_those_of_the_response():
    """With instructions and tools, as they count in its usage."""
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    body = {"model": "embedded:tiny", "instructions": "Be kind.", "input": "hi", "tools": [tool]}
    async with client_of(TINY) as (client, _):
        counted = await client.responses.input_tokens.count(**body, tool_choice="none")
        made = await client.responses.create(**body, tool_choice="none", max_output_tokens=1)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.input_tokens.count(model="embedded:tiny")
    assert counted.input_tokens == made.usage.input_tokens
    assert refused.value.param == "input"


async def test_a_compacted_conversation_is_an_input():
    """The user's messages and one summary, which the model then reads as a message of its own."""
    async with client_of(ECHO, template=SCRIPT, max_model_len=2048) as (client, _):
        items = [
            {"role": "user", "content": "Remember: blue."},
            {"role": "assistant", "content": "Noted."},
        ]
        compacted = await client.responses.compact(model=ECHO, input=items)
        assert [item.type for item in compacted.output] == ["message", "compaction"]
        assert compacted.output[0].content[0].text == "Remember: blue."
        assert compacted.usage.output_tokens > 0
        given = [item.model_dump(warnings=False, exclude_none=True) for item in compacted.output]
        counted = await client.responses.input_tokens.count(model=ECHO, input=given)
        made = await client.responses.create(
            model=ECHO, input=[*given, {"role": "user", "content": "Colour?"}]
        )
        listed = await client.responses.input_items.list(made.id, order="asc")
    assert counted.input_tokens > 0
    assert [item.type for item in listed.data] == ["message", "compaction", "message"]
