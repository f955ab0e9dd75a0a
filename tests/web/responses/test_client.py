"""The official client against the real server: typed answers, streams, tools, conversations, errors."""

import json
from typing import Literal

import openai
import pydantic
import pytest

from tests.web.openai.calls import client_of
from tests.web.responses.serving_responses import CALL, REASONING, flat_tool, scripted
from tests.web.serving import ECHO, RANDOM, TINY


class Weather(pydantic.BaseModel):
    """What a parsed answer has to be."""

    unit: Literal["c", "f"]
    rainy: bool


async def test_a_response_is_what_the_client_types():
    """Every field where its model has it; a strict check of the types finds nothing."""
    async with client_of(TINY) as (client, _):
        made = await client.responses.create(
            model="embedded:tiny",
            input="hello",
            instructions="Be kind.",
            tools=[flat_tool()],
            tool_choice="none",
            include=["message.output_text.logprobs"],
            metadata={"a": "b"},
            temperature=0,
        )
        again = await client.responses.retrieve(made.id)
    assert type(made).model_validate(made.to_dict(), strict=True)
    assert made.status == "completed"
    assert made.output_text
    assert made.completed_at >= made.created_at
    assert made.metadata == {"a": "b"}
    assert again == made


async def test_a_stream_ends_in_the_response_that_is_stored():
    """The client's own accumulation finds nothing wrong with it."""
    async with client_of(TINY) as (client, _):
        async with client.responses.stream(model="embedded:tiny", input="hello") as stream:
            final = await stream.get_final_response()
        stored = await client.responses.retrieve(final.id)
    assert stored.output_text == final.output_text != ""


async def test_a_parsed_answer_follows_its_model():
    """Streamed and in one piece, a pydantic model comes back."""
    async with client_of(RANDOM) as (client, served):
        model = served.client.model_config.served_model_name
        made = await client.responses.parse(model=model, input="Weather?", text_format=Weather)
        async with client.responses.stream(
            model=model, input="Weather?", text_format=Weather
        ) as stream:
            final = await stream.get_final_response()
    assert isinstance(made.output_parsed, Weather)
    assert isinstance(final.output_parsed, Weather)
    assert made.text.format.schema_["properties"].keys() == {"unit", "rainy"}


async def test_a_tools_result_is_fed_back():
    """The call and its output reach the model as one turn of it and the tool's answer."""
    async with scripted(max_model_len=2048) as (client, served):
        made = await client.responses.create(
            model="embedded:echo", input=f"{REASONING}{CALL}", tools=[flat_tool()]
        )
        call = made.output[1]
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        chained = await client.responses.create(
            model="embedded:echo", input=[output], previous_response_id=made.id
        )
        echoed = await client.responses.create(
            model="embedded:echo",
            input=[{"role": "user", "content": "x"}, *(i.to_dict() for i in made.output), output],
        )
    assert json.loads(call.arguments) == {"unit": "c", "days": 3}
    assert chained.status == echoed.status == "completed"
    assert chained.previous_response_id == made.id
    assert echoed.output_text == "x"
    assert served.client.num_active_requests == 0


async def test_a_conversation_goes_on_from_the_stored_one():
    """Chained by id, or with all items echoed: the same prompt, and so the same answer."""
    async with client_of(TINY) as (client, _):
        request = {"model": "embedded:tiny", "temperature": 0, "max_output_tokens": 12}
        first = await client.responses.create(input="hello", instructions="Once.", **request)
        chained = await client.responses.create(
            input="and then?", previous_response_id=first.id, **request
        )
        items = [{"role": "user", "content": "hello"}, *(item.to_dict() for item in first.output)]
        whole = await client.responses.create(
            input=[*items, {"role": "user", "content": "and then?"}], **request
        )
        referring = await client.responses.create(
            input=[
                {"role": "user", "content": "hello"},
                {"type": "item_reference", "id": first.output[0].id},
                {"role": "user", "content": "and then?"},
            ],
            **request,
        )
    assert chained.output_text == whole.output_text == referring.output_text
    assert chained.usage.input_tokens == whole.usage.input_tokens == referring.usage.input_tokens
    assert chained.instructions is None


async def test_earlier_messages_may_be_sent_along():
    """In chat's form, before the input, and part of what goes on from here."""
    async with client_of(TINY) as (client, _):
        request = {"model": "embedded:tiny", "temperature": 0, "max_output_tokens": 12}
        earlier = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "Hi!"},
        ]
        sent = await client.responses.create(
            input="and then?", extra_body={"previous_input_messages": earlier}, **request
        )
        whole = await client.responses.create(
            input=[*earlier, {"role": "user", "content": "and then?"}], **request
        )
        chained = await client.responses.create(input="x", previous_response_id=sent.id, **request)
        same = await client.responses.create(input="x", previous_response_id=whole.id, **request)
    assert sent.output_text == whole.output_text
    assert sent.usage.input_tokens == whole.usage.input_tokens
    assert chained.usage.input_tokens == same.usage.input_tokens


async def test_input_items_are_paged():
    """The last first unless ordered otherwise; pages follow each other."""
    texts = [f"number {number}" for number in range(5)]
    async with client_of(ECHO) as (client, _):
        made = await client.responses.create(
            model="embedded:echo",
            input=[{"role": "user", "content": text} for text in texts],
            max_output_tokens=1,
        )
        page = await client.responses.input_items.list(made.id, limit=2)
        walked = [item.content[0].text async for item in page]
        first = await client.responses.input_items.list(made.id, order="asc", limit=1)
        with pytest.raises(openai.BadRequestError) as stranger:
            await client.responses.input_items.list(made.id, after="x")
    assert walked == texts[::-1]
    assert (first.data[0].content[0].text, first.has_more) == (texts[0], True)
    assert first.first_id == first.last_id == first.data[0].id
    assert stranger.value.param == "after"


async def test_a_deleted_response_is_gone():
    """For reading, for going on with it, and for deleting it again."""
    async with client_of(ECHO) as (client, _):
        request = {"model": "embedded:echo", "input": "hello", "max_output_tokens": 1}
        made = await client.responses.create(**request)
        unstored = await client.responses.create(**request, store=False)
        await client.responses.delete(made.id)
        for response_id in (made.id, unstored.id):
            with pytest.raises(openai.NotFoundError) as missing:
                await client.responses.retrieve(response_id)
            assert (missing.value.param, missing.value.code) == (
                "response_id",
                "response_not_found",
            )
            with pytest.raises(openai.BadRequestError) as broken:
                await client.responses.create(**request, previous_response_id=response_id)
            assert broken.value.param == "previous_response_id"
            assert broken.value.code == "previous_response_not_found"
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(made.id)


async def test_errors_are_the_clients_own():
    """Status, type, parameter and code, for an answer and for a stream that never began."""
    async with client_of(ECHO, max_model_len=64) as (client, _):
        with pytest.raises(openai.NotFoundError) as stranger:
            await client.responses.create(model="x", input="hello")
        with pytest.raises(openai.BadRequestError) as long:
            await client.responses.create(
                model="embedded:echo", input="hello", max_output_tokens=64, stream=True
            )
        with pytest.raises(openai.BadRequestError) as too_long:
            await client.responses.create(model="embedded:echo", input="x" * 100, background=True)
        with pytest.raises(openai.BadRequestError) as bad:
            await client.responses.create(model="embedded:echo", input="x", temperature=9)
    assert stranger.value.code == "model_not_found"
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "max_output_tokens")
    assert "(max_output_tokens)" in str(long.value)
    assert (too_long.value.code, too_long.value.param) == ("context_length_exceeded", "input")
    assert bad.value.param == "temperature"


async def test_only_allowed_tools_are_called():
    """Of two on offer, the one that the choice allows."""
    async with client_of(RANDOM) as (client, served):
        made = await client.responses.create(
            model=served.client.model_config.served_model_name,
            input="hello",
            tools=[flat_tool("f"), flat_tool("g")],
            tool_choice={
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "g"}],
            },
            parallel_tool_calls=False,
        )
    assert [item.name for item in made.output] == ["g"]
    assert len(made.tools) == 2
