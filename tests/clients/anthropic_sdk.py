"""The official Anthropic package."""

import anthropic
from asking import (
    ANSWER,
    MODEL,
    RESULT,
    TIMER_SCHEMA,
    WEATHER,
    WEATHER_ARGUMENTS,
    WEATHER_SCHEMA,
    address,
    ask,
    ended,
    is_told,
    refused,
    run,
)

client = anthropic.Anthropic(base_url=address(), api_key="none", max_retries=0)
# The package has no argument for it any more, the API has.
asked = {"model": MODEL, "max_tokens": 200, "extra_body": {"temperature": 0}}
offered = [
    {"name": "get_weather", "description": "Get the weather in a city", "input_schema": WEATHER_SCHEMA},
    {"name": "set_timer", "description": "Start a timer", "input_schema": TIMER_SCHEMA},
]  # fmt: skip


def chat() -> None:
    """An answer, and what it cost; the prompt's length is known beforehand."""
    made = client.messages.create(messages=ask(), **asked)
    (block,) = made.content
    assert ANSWER in block.text
    assert made.stop_reason == "end_turn"
    counted = client.messages.count_tokens(model=MODEL, messages=ask())
    cached = made.usage.cache_read_input_tokens or 0  # counted apart
    assert counted.input_tokens == made.usage.input_tokens + cached


def stream() -> None:
    """The package's accumulator checks the order of events."""
    with client.messages.stream(messages=ask(), **asked) as events:
        pieces = list(events.text_stream)
        made = events.get_final_message()
    assert ANSWER in "".join(pieces)
    assert made.usage.output_tokens > 0


def tools() -> None:
    """Called, and told what came of it."""
    messages = ask(WEATHER)
    made = client.messages.create(messages=messages, tools=offered, **asked)
    (call,) = [block for block in made.content if block.type == "tool_use"]
    assert made.stop_reason == "tool_use"
    assert (call.name, call.input) == ("get_weather", WEATHER_ARGUMENTS)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    messages += [
        {"role": "assistant", "content": made.content},
        {"role": "user", "content": [result]},
    ]
    made = client.messages.create(messages=messages, tools=offered, **asked)
    assert is_told(made.content[0].text)


def streamed_tools() -> None:
    """Arguments come as pieces of JSON."""
    with client.messages.stream(messages=ask(WEATHER), tools=offered, **asked) as events:
        made = events.get_final_message()
    assert [block.input for block in made.content if block.type == "tool_use"] == [
        WEATHER_ARGUMENTS
    ]


def tool_runner() -> None:
    """The package calls the function itself; it asks for a thread first, and goes on without one."""
    asked_for = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the weather in a city

        Args:
            city: its name
        """
        asked_for.append({"city": city})
        return RESULT

    for streams in (False, True):
        runner = client.beta.messages.tool_runner(
            messages=ask(WEATHER), tools=[get_weather], stream=streams, **asked
        )
        assert is_told(runner.until_done().content[0].text)
    assert asked_for == [WEATHER_ARGUMENTS] * 2


def forced_tools() -> None:
    """Some call whatever was asked, and one by name, streamed too."""
    made = client.messages.create(
        messages=ask(), tools=offered,
        tool_choice={"type": "any", "disable_parallel_tool_use": True}, **asked,
    )  # fmt: skip
    assert [block.type for block in made.content] == ["tool_use"]
    named = {"type": "tool", "name": "set_timer"}
    made = client.messages.create(messages=ask(), tools=offered, tool_choice=named, **asked)
    (call,) = made.content
    assert isinstance(call.input["minutes"], int)
    with client.messages.stream(
        messages=ask(), tools=offered, tool_choice=named, **asked
    ) as events:
        (streamed,) = events.get_final_message().content
    assert streamed.input == call.input


def errors() -> None:
    """Each of the class that its documentation says."""
    for error, wrong in (
        (anthropic.NotFoundError, {"model": "nobody"}),
        (anthropic.BadRequestError, {"extra_body": {"temperature": 9}}),
        (anthropic.BadRequestError, {"max_tokens": 10**4}),
        (anthropic.BadRequestError, {"max_tokens": 10**4, "stream": True}),
    ):
        raised = refused(error, client.messages.create, messages=ask(), **asked | wrong)
        assert raised.body["type"] == "error"
        assert raised.body["request_id"]


def batches() -> None:
    """A batch of messages, its results, and one that nobody made."""
    made = client.messages.batches.create(
        requests=[
            {"custom_id": str(one), "params": {"messages": ask(), **asked}} for one in range(3)
        ]
    )
    made = ended(client.messages.batches.retrieve, made.id, "processing_status", ("ended",))
    assert made.request_counts.succeeded == 3
    results = {one.custom_id: one.result for one in client.messages.batches.results(made.id)}
    assert sorted(results) == ["0", "1", "2"]
    assert ANSWER in results["0"].message.content[0].text
    assert made.id in [one.id for one in client.messages.batches.list()]
    assert client.messages.batches.delete(made.id).id == made.id
    params = {"messages": ask(), **asked}
    cut = client.messages.batches.create(requests=[{"custom_id": "a", "params": params}])
    assert client.messages.batches.cancel(cut.id).processing_status in ("canceling", "ended")
    refused(anthropic.NotFoundError, client.messages.batches.retrieve, made.id)


run(chat, stream, tools, streamed_tools, tool_runner, forced_tools, errors, batches)
