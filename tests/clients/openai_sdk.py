"""The official OpenAI package, of both major versions."""

import json

import openai
from asking import (
    ANSWER,
    CAPITAL,
    MODEL,
    PERSON_SCHEMA,
    RESULT,
    WEATHER,
    WEATHER_ARGUMENTS,
    WEATHER_SCHEMA,
    address,
    ask,
    embedding_address,
    is_person,
    is_told,
    openai_tools,
    refused,
    run,
)

client = openai.OpenAI(base_url=f"{address()}/v1", api_key="none", max_retries=0)
greedy = {"model": MODEL, "temperature": 0}


def chat() -> None:
    """An answer, and what it cost."""
    assert [model.id for model in client.models.list()] == [MODEL]
    made = client.chat.completions.create(messages=ask(), **greedy)
    assert ANSWER in made.choices[0].message.content
    assert made.choices[0].finish_reason == "stop"
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens
    text = client.completions.create(prompt="The capital of France is", max_tokens=4, **greedy)
    assert ANSWER in text.choices[0].text


def stream() -> None:
    """Piece by piece, with the usage last."""
    chunks = list(
        client.chat.completions.create(
            messages=ask(), stream=True, stream_options={"include_usage": True}, **greedy
        )
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert ANSWER in "".join(pieces)
    assert chunks[-1].usage.completion_tokens > 0


def tools() -> None:
    """Called of the model's own accord, and told what came of it."""
    messages = ask(WEATHER)
    made = client.chat.completions.create(messages=messages, tools=openai_tools(), **greedy)
    message = made.choices[0].message
    assert made.choices[0].finish_reason == "tool_calls"
    (call,) = message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == WEATHER_ARGUMENTS
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    made = client.chat.completions.create(messages=messages, tools=openai_tools(), **greedy)
    assert is_told(made.choices[0].message.content)


def streamed_tools() -> None:
    """The package's own accumulator joins the pieces."""
    with client.chat.completions.stream(
        messages=ask(WEATHER), tools=openai_tools(), **greedy
    ) as events:
        for _ in events:
            pass
        (call,) = events.get_final_completion().choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == WEATHER_ARGUMENTS


def forced_tools() -> None:
    """Some call, and the call named, whatever was asked."""
    made = client.chat.completions.create(
        messages=ask(), tools=openai_tools(), tool_choice="required",
        parallel_tool_calls=False, max_tokens=200, **greedy,
    )  # fmt: skip
    (call,) = made.choices[0].message.tool_calls
    assert call.function.name in {"get_weather", "set_timer"}
    named = {"type": "function", "function": {"name": "set_timer"}}
    made = client.chat.completions.create(
        messages=ask("Set a timer for 12 minutes."), tools=openai_tools(), tool_choice=named,
        max_tokens=200, **greedy,
    )  # fmt: skip
    (call,) = made.choices[0].message.tool_calls
    assert call.function.name == "set_timer"
    assert isinstance(json.loads(call.function.arguments)["minutes"], int)


def schema() -> None:
    """JSON of the shape asked for."""
    made = client.chat.completions.create(
        messages=ask(),
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": PERSON_SCHEMA, "strict": True},
        },
        max_tokens=100,
        **greedy,
    )
    assert is_person(made.choices[0].message.content)


def errors() -> None:
    """Each of the class that its documentation says."""
    for error, asked in (
        (openai.NotFoundError, {"model": "nobody"}),
        (openai.BadRequestError, {"model": MODEL, "temperature": 9}),
        (openai.BadRequestError, {"model": MODEL, "max_tokens": 10**6}),
        (openai.BadRequestError, {"model": MODEL, "temperature": 9, "stream": True}),
    ):
        raised = refused(error, client.chat.completions.create, messages=ask(), **asked)
        assert raised.request_id


def responses() -> None:
    """The newer API: whole, streamed, with a call and its result, and continued by id."""
    asked = {"model": MODEL, "temperature": 0}
    made = client.responses.create(input=CAPITAL, **asked)
    assert ANSWER in made.output_text
    with client.responses.stream(input=CAPITAL, **asked) as events:
        for _ in events:
            pass
        assert ANSWER in events.get_final_response().output_text
    weather = {
        "type": "function", "name": "get_weather", "parameters": WEATHER_SCHEMA,
        "description": "Get the weather in a city",
    }  # fmt: skip
    first = client.responses.create(input=WEATHER, tools=[weather], **asked)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments) == WEATHER_ARGUMENTS
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    second = client.responses.create(
        input=[result], previous_response_id=first.id, tools=[weather], **asked
    )
    assert is_told(second.output_text)
    made = client.responses.create(
        input=CAPITAL, max_output_tokens=100, **asked,
        text={"format": {"type": "json_schema", "name": "person", "schema": PERSON_SCHEMA, "strict": True}},
    )  # fmt: skip
    assert is_person(made.output_text)
    assert client.responses.retrieve(second.id).output_text == second.output_text


def server_tools() -> None:
    """A tool of an MCP server, called by the server; in one piece, streamed, and with an approval."""
    station = {"type": "mcp", "server_label": "station", "allowed_tools": ["get_weather"]}
    asked = {"model": MODEL, "temperature": 0, "input": WEATHER}
    free = [{**station, "require_approval": "never"}]
    made = client.responses.create(tools=free, **asked)
    (call,) = [item for item in made.output if item.type == "mcp_call"]
    assert json.loads(call.arguments) == WEATHER_ARGUMENTS
    assert is_told(made.output_text)
    with client.responses.stream(tools=free, **asked) as events:
        kinds = [event.type for event in events]
        assert is_told(events.get_final_response().output_text)
    assert "response.mcp_call.completed" in kinds
    made = client.responses.create(tools=[station], **asked)
    request = made.output[-1]
    assert request.type == "mcp_approval_request"
    approval = {
        "type": "mcp_approval_response", "approval_request_id": request.id, "approve": True,
    }  # fmt: skip
    made = client.responses.create(
        tools=[station], previous_response_id=made.id, **asked | {"input": [approval]}
    )
    assert is_told(made.output_text)


def realtime() -> None:
    """A session over a WebSocket: settings, a streamed answer, a forced call, an error that it survives."""
    with client.realtime.connect(model=MODEL) as session:
        assert session.recv().session.model == MODEL
        session.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 64}
        )
        assert session.recv().type == "session.updated"
        part = {"type": "input_text", "text": CAPITAL}
        session.conversation.item.create(
            item={"type": "message", "role": "user", "content": [part]}
        )
        session.response.create()
        pieces = []
        for event in session:
            if event.type == "response.output_text.delta":
                pieces.append(event.delta)
            if event.type == "response.done":
                break
        (message,) = event.response.output
        assert "".join(pieces) == message.content[0].text
        assert event.response.usage.total_tokens > 0
        tool = {"type": "function", "name": "get_weather", "parameters": WEATHER_SCHEMA}
        session.response.create(response={"tools": [tool], "tool_choice": "required"})
        for event in session:
            if event.type == "response.done":
                break
        (call,) = event.response.output
        assert (call.type, call.name) == ("function_call", "get_weather")
        assert "city" in json.loads(call.arguments)
        session.input_audio_buffer.commit()
        error = session.recv()
        assert error.type == "error"
        assert "not supported" in error.error.message


def embeddings() -> None:
    """Vectors, which the package asks for in base64."""
    embedder = openai.OpenAI(base_url=f"{embedding_address()}/v1", api_key="none")
    made = embedder.embeddings.create(model=MODEL, input=["one", "two"])
    assert [entry.index for entry in made.data] == [0, 1]
    assert abs(sum(number * number for number in made.data[0].embedding) - 1) < 1e-3


run(chat, stream, tools, streamed_tools, forced_tools, schema, errors, responses, server_tools,
    realtime, embeddings)  # fmt: skip
