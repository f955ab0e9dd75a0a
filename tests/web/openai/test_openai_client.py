"""The official client against the real server: typed answers, streams, tools, errors."""

import asyncio
import json

import openai
import pytest

from tests.busy import PATIENCE_S
from tests.web.openai.calls import HELLO, client_of
from tests.web.serving import ECHO, RANDOM, TINY, is_compact, weather_tool
from weft.cli.options import ServeOptions
from weft.cli.serving.loading import to_api_options
from weft.model.open import open_model


async def test_a_chat_completion_is_what_the_client_types():
    """Every field where its model has it; a strict check of the types finds nothing."""
    async with client_of(ECHO) as (client, _):
        made = await client.chat.completions.create(
            model="embedded:echo", messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2
        )
    assert type(made).model_validate(made.to_dict(), strict=True)
    (choice,) = made.choices
    assert choice.message.content
    assert choice.message.tool_calls == []
    assert choice.finish_reason == "length"
    assert len(choice.logprobs.content[0].top_logprobs) == 2
    assert made.usage.completion_tokens == 3


async def test_a_stream_adds_up_in_the_clients_own_accumulator():
    """Its helper joins deltas by what is there, and raises on what does not fit."""
    async with client_of(ECHO) as (client, _):
        async with client.chat.completions.stream(
            model="embedded:echo",
            messages=HELLO,
            max_tokens=50,
            stop="\n",
            n=2,
            stream_options={"include_usage": True},
        ) as stream:
            async for _ in stream:
                pass
            made = await stream.get_final_completion()
        whole = await client.chat.completions.create(
            model="embedded:echo", messages=HELLO, max_tokens=50, stop="\n"
        )
    assert [choice.message.content for choice in made.choices] == [
        whole.choices[0].message.content
    ] * 2
    assert made.usage.completion_tokens == 2 * whole.usage.completion_tokens


async def test_required_tools_stream_through_the_accumulator():
    """Ids and names once, arguments in pieces, one entry a call."""
    async with (
        client_of() as (client, _),
        client.chat.completions.stream(
            model=RANDOM,
            messages=HELLO,
            tools=[weather_tool()],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=200,
        ) as stream,
    ):
        async for _ in stream:
            pass
        made = await stream.get_final_completion()
    (choice,) = made.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.id.startswith("chatcmpl-tool-")
    assert json.loads(call.function.arguments)["unit"] in {"c", "f"}
    assert is_compact(call.function.arguments)


async def test_a_delta_never_holds_reasoning_that_is_not_there():
    """Scripts append it wherever the attribute exists."""
    async with client_of(ECHO) as (client, _):
        stream = await client.chat.completions.create(
            model="embedded:echo", messages=HELLO, max_tokens=3, stream=True
        )
        deltas = [chunk.choices[0].delta async for chunk in stream]
    assert not any(hasattr(delta, "reasoning") for delta in deltas)


async def test_completions_stream_and_whole():
    """Two answers, log-probabilities, and the same text either way."""
    async with client_of(ECHO) as (client, _):
        asked = {"model": "embedded:echo", "prompt": "hello", "n": 2, "logprobs": 3}
        made = await client.completions.create(**asked)
        texts = {0: "", 1: ""}
        async for chunk in await client.completions.create(**asked, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
    assert type(made).model_validate(made.to_dict(), strict=True)
    assert [choice.text for choice in made.choices] == [texts[0], texts[1]]


async def test_errors_are_the_clients_own():
    """Status, type, parameter and code, for an answer and for a stream that never began."""
    async with client_of(ECHO, max_model_len=64) as (client, _):
        with pytest.raises(openai.NotFoundError) as stranger:
            await client.chat.completions.create(model="x", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as long:
            await client.chat.completions.create(
                model="embedded:echo", messages=HELLO, max_tokens=64, stream=True
            )
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(
                model="embedded:echo", prompt="x", temperature=9, stream=True
            )
    assert stranger.value.code == "model_not_found"
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "max_tokens")
    assert bad.value.param == "temperature"


async def test_a_client_that_leaves_ends_its_request():
    """The engine does no more for a stream that nobody reads."""
    async with client_of(ECHO + "?itl_ms=50") as (client, served):
        stream = await client.chat.completions.create(
            model=served.client.model_config.served_model_name,
            messages=HELLO,
            max_tokens=900,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        await anext(aiter(stream))
        assert served.client.num_active_requests == 1
        await stream.close()
        async with asyncio.timeout(PATIENCE_S):
            while served.client.num_active_requests:  # noqa: ASYNC110 - nobody is told of it
                await asyncio.sleep(0.01)


async def test_a_small_model_is_served_as_from_the_command_line():
    """With the parsers that its template asks for: forced calls are valid, with reasoning on or off."""
    options = to_api_options(ServeOptions(), open_model(TINY).chat_template)
    async with client_of(TINY, options=options, max_model_len=2048) as (client, _):
        for thinking in (False, True):
            made = await client.chat.completions.create(
                model=TINY,
                messages=HELLO,
                tools=[weather_tool()],
                tool_choice="required",
                parallel_tool_calls=False,
                max_tokens=300,
                seed=1,
                extra_body={
                    "chat_template_kwargs": {"enable_thinking": thinking},
                    "thinking_token_budget": 40,
                },
            )
            (choice,) = made.choices
            assert choice.finish_reason == "tool_calls"
            (call,) = choice.message.tool_calls
            assert json.loads(call.function.arguments)["unit"] in {"c", "f"}
            assert (made.usage.completion_tokens_details.reasoning_tokens > 0) == thinking
