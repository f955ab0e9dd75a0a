"""The official Ollama package."""

import ollama
from asking import (
    ANSWER,
    MODEL,
    PERSON_SCHEMA,
    RESULT,
    WEATHER,
    WEATHER_ARGUMENTS,
    address,
    ask,
    embedding_address,
    is_person,
    is_told,
    openai_tools,
    refused,
    run,
)

client = ollama.Client(host=address())
OPTIONS = {"temperature": 0, "num_predict": 200}
asked = {"model": MODEL, "options": OPTIONS}
offered = openai_tools()


def chat() -> None:
    """An answer, its counts and durations; the model's facts beside it."""
    made = client.chat(messages=ask(), **asked)
    assert ANSWER in made.message.content
    assert made.done_reason == "stop"
    assert made.eval_count > 0
    assert made.total_duration >= made.eval_duration
    assert [model.model for model in client.list().models] == [MODEL]
    assert [model.model for model in client.ps().models] == [MODEL]
    assert "tools" in client.show(MODEL).capabilities


def stream() -> None:
    """Lines of JSON, of a chat and of a text."""
    whole = client.chat(messages=ask(), **asked).message.content
    pieces = list(client.chat(messages=ask(), stream=True, **asked))
    assert "".join(piece.message.content for piece in pieces) == whole
    text = client.generate(prompt="Hello", **asked).response
    pieces = list(client.generate(prompt="Hello", stream=True, **asked))
    assert "".join(piece.response for piece in pieces) == text


def tools() -> None:
    """Called, and told what came of it."""
    messages = ask(WEATHER)
    made = client.chat(messages=messages, tools=offered, **asked)
    (call,) = made.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", WEATHER_ARGUMENTS)
    messages += [made.message, {"role": "tool", "content": RESULT, "tool_name": "get_weather"}]
    made = client.chat(messages=messages, tools=offered, **asked)
    assert is_told(made.message.content)


def streamed_tools() -> None:
    """A call comes in one piece."""
    pieces = list(client.chat(messages=ask(WEATHER), tools=offered, stream=True, **asked))
    calls = [call for piece in pieces for call in piece.message.tool_calls or ()]
    assert [call.function.arguments for call in calls] == [WEATHER_ARGUMENTS]


def schema() -> None:
    """An answer in the form of a schema."""
    made = client.chat(messages=ask(WEATHER), format=PERSON_SCHEMA, **asked)
    assert is_person(made.message.content)


def errors() -> None:
    """The package's own exception, with the text and the status."""
    for wrong, status in (
        ({"model": "nobody"}, 404),
        ({"options": {"temperature": -1}}, 400),
        ({"think": "a lot"}, 400),
    ):
        fields = asked | {"messages": ask()} | wrong
        raised = refused(ollama.ResponseError, client.chat, **fields)
        assert raised.status_code == status
        assert raised.error


def embeddings() -> None:
    """Vectors of a server that embeds."""
    embedding = ollama.Client(host=embedding_address())
    made = embedding.embed(model=MODEL, input=["a", "b"])
    assert len(made.embeddings) == 2
    older = embedding.embeddings(model=MODEL, prompt="a").embedding
    assert len(older) == len(made.embeddings[0])


run(chat, stream, tools, streamed_tools, schema, errors, embeddings)
