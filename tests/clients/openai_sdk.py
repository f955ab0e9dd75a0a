"""The official OpenAI package, of both major versions."""

import inspect
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
    ended,
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


def stored_responses() -> None:
    """In the background, to its end and cancelled; its input; its length beforehand; a shorter conversation."""
    asked = {"model": MODEL, "input": CAPITAL}
    made = client.responses.create(background=True, temperature=0, **asked)
    made = ended(client.responses.retrieve, made.id, "status", ("completed", "failed"))
    assert ANSWER in made.output_text
    (item,) = client.responses.input_items.list(made.id)
    assert item.content[0].text == CAPITAL
    counted = client.responses.input_tokens.count(**asked)
    assert counted.input_tokens == made.usage.input_tokens
    cut = client.responses.create(background=True, max_output_tokens=200, **asked)
    assert client.responses.cancel(cut.id).status in ("cancelled", "completed")
    for one in (made, cut):
        client.responses.delete(one.id)
        refused(openai.NotFoundError, client.responses.retrieve, one.id)
    shorter = client.responses.compact(**asked)
    assert [item.type for item in shorter.output] == ["message", "compaction"]
    again = [item.model_dump(exclude_none=True) for item in shorter.output]
    question = {"role": "user", "content": CAPITAL}
    assert client.responses.create(model=MODEL, input=[*again, question]).output_text


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


def has_lanes(session) -> bool:
    """Whether the package knows lanes: those of the older major version do not."""
    return "stream_id" in inspect.signature(session.response.create).parameters


def response_sockets() -> None:
    """Responses over a WebSocket: streamed, continued without being stored, side by side, and an error."""
    if not hasattr(client.responses, "connect"):
        return  # packages of the older major version have no such call
    asked = {"model": MODEL, "temperature": 0, "store": False}
    with client.responses.connect() as session:
        session.response.create(input=CAPITAL, **asked)
        pieces = []
        for event in session:
            if event.type == "response.output_text.delta":
                pieces.append(event.delta)
            if event.type == "response.completed":
                break
        assert "".join(pieces) == event.response.output_text
        assert ANSWER in event.response.output_text
        parent = event.response.id
        if has_lanes(session):
            for lane in ("one", "two"):
                session.response.create(
                    input=CAPITAL, previous_response_id=parent, stream_id=lane, **asked
                )
            ended = set()
            while len(ended) < 2:
                event = session.recv()
                assert event.type != "error", event
                if event.type == "response.completed":
                    ended.add(event.stream_id)
            assert ended == {"one", "two"}
        session.response.create(input=CAPITAL, previous_response_id="resp_none", **asked)
        error = session.recv()
        assert (error.type, error.status) == ("error", 400)
        assert dict(error.error)["code"] == "previous_response_not_found"


def conversations() -> None:
    """A conversation that responses continue, its items, and its end."""
    made = client.conversations.create(metadata={"topic": "test"})
    client.responses.create(model=MODEL, input=CAPITAL, conversation=made.id, temperature=0)
    items = list(client.conversations.items.list(made.id, order="asc"))
    assert [item.role for item in items] == ["user", "assistant"]
    assert ANSWER in items[1].content[0].text
    assert client.conversations.retrieve(made.id).metadata == {"topic": "test"}
    assert client.conversations.update(made.id, metadata={"topic": "b"}).metadata == {"topic": "b"}
    said = {"type": "message", "role": "user", "content": WEATHER}
    (added,) = client.conversations.items.create(made.id, items=[said]).data
    read = client.conversations.items.retrieve(added.id, conversation_id=made.id)
    assert read.content[0].text == WEATHER
    client.conversations.items.delete(added.id, conversation_id=made.id)
    assert added.id not in [item.id for item in client.conversations.items.list(made.id)]
    assert client.conversations.delete(made.id).deleted
    refused(openai.NotFoundError, client.conversations.retrieve, made.id)


def batches() -> None:
    """A file of requests, the batch that runs them, its output, and both errors."""
    lines = [
        {
            "custom_id": str(number), "method": "POST", "url": "/v1/chat/completions",
            "body": {"messages": ask(), **greedy},
        }
        for number in range(3)
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("asked.jsonl", text), purpose="batch")
    assert client.files.content(file.id).content == text
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    batch = ended(client.batches.retrieve, batch.id, "status", ("completed", "failed", "expired"))
    assert (batch.status, batch.request_counts.completed) == ("completed", 3)
    answers = list(map(json.loads, client.files.content(batch.output_file_id).text.splitlines()))
    assert {one["custom_id"] for one in answers} == {"0", "1", "2"}
    assert ANSWER in answers[0]["response"]["body"]["choices"][0]["message"]["content"]
    assert batch.id in [one.id for one in client.batches.list()]
    cut = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    assert client.batches.cancel(cut.id).status in ("cancelling", "cancelled", "completed")
    assert file.id in [one.id for one in client.files.list()]
    assert client.files.delete(file.id).deleted
    refused(openai.NotFoundError, client.batches.retrieve, "batch_none")
    refused(openai.NotFoundError, client.files.retrieve, file.id)


def decisions() -> None:
    """Answers by probabilities, of each kind; the toy may refuse."""
    if not hasattr(client, "decisions"):
        return  # packages of the older major version have no such call
    made = client.decisions.create(
        model=MODEL,
        input="The parcel arrived two weeks late.",
        questions=[
            {"type": "predicate", "instructions": "The customer is satisfied."},
            {
                "type": "choice",
                "instructions": "Which?",
                "choices": [{"value": "a"}, {"value": "b"}],
            },
        ],
    )
    predicate, choice = made.answers
    assert predicate.type in ("predicate", "refusal")
    if choice.type == "choice":
        assert abs(sum(one.probability for one in choice.probabilities) - 1) < 1e-6
    refused(openai.BadRequestError, client.decisions.create, model=MODEL, input="a", questions=[])


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


run(chat, stream, tools, streamed_tools, forced_tools, schema, errors, responses, stored_responses,
    response_sockets, conversations, batches, decisions, server_tools, realtime, embeddings)  # fmt: skip
