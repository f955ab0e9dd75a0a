"""The official Cohere package, version 2 of its API: chat at vLLM's path and at Cohere's own, embeddings, rankings."""

import json

import cohere
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
from cohere.errors import BadRequestError, NotFoundError

client = cohere.ClientV2(api_key="none", base_url=address())
asked = {"model": MODEL, "temperature": 0, "max_tokens": 200}
offered = openai_tools()


def chat() -> None:
    """An answer, its usage and its reason, at both paths."""
    for base in (address(), f"{address()}/cohere"):
        made = cohere.ClientV2(api_key="none", base_url=base).chat(messages=ask(), **asked)
        assert ANSWER in made.message.content[0].text
        assert made.finish_reason == "COMPLETE"
        assert made.usage.tokens.output_tokens > 0
    scored = client.chat(messages=ask(), logprobs=True, **asked)
    assert all(len(one.token_ids) == len(one.logprobs) for one in scored.logprobs)


def stream() -> None:
    """Events of a block, between the beginning and the end of the message."""
    whole = client.chat(messages=ask(), **asked).message.content[0].text
    events = list(client.chat_stream(messages=ask(), **asked))
    pieces = [event for event in events if event.type == "content-delta"]
    assert "".join(event.delta.message.content.text for event in pieces) == whole
    assert (events[0].type, events[-1].type) == ("message-start", "message-end")
    assert events[-1].delta.usage.tokens.output_tokens > 0


def tools() -> None:
    """Called, and told what came of it."""
    messages = ask(WEATHER)
    made = client.chat(messages=messages, tools=offered, **asked)
    assert made.finish_reason == "TOOL_CALL"
    (call,) = made.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == WEATHER_ARGUMENTS
    messages += [made.message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    made = client.chat(messages=messages, tools=offered, **asked)
    assert is_told(made.message.content[0].text)


def streamed_tools() -> None:
    """A call begins with its name, and its arguments follow."""
    events = list(client.chat_stream(messages=ask(WEATHER), tools=offered, **asked))
    (start,) = [event for event in events if event.type == "tool-call-start"]
    assert start.delta.message.tool_calls.function.name == "get_weather"
    pieces = [event for event in events if event.type == "tool-call-delta"]
    text = "".join(event.delta.message.tool_calls.function.arguments for event in pieces)
    assert json.loads(text) == WEATHER_ARGUMENTS


def forced_tools() -> None:
    """A call that the caller demands."""
    made = client.chat(
        messages=ask(WEATHER), tools=offered, tool_choice="REQUIRED", strict_tools=True, **asked
    )
    assert made.message.tool_calls


def schema() -> None:
    """An answer in the form of a schema."""
    form = {"type": "json_object", "json_schema": PERSON_SCHEMA}
    made = client.chat(messages=ask(WEATHER), response_format=form, **asked)
    assert is_person(made.message.content[0].text)


def errors() -> None:
    """The package's own exceptions, with the text."""
    for wrong, kind in (
        ({"model": "nobody"}, NotFoundError),
        ({"temperature": -1}, BadRequestError),
        ({"k": -2}, BadRequestError),
    ):
        fields = asked | {"messages": ask()} | wrong
        raised = refused(kind, client.chat, **fields)
        assert raised.body["message"]


def embeddings() -> None:
    """Vectors in two types, and a ranking, of a server that embeds."""
    embedding = cohere.ClientV2(api_key="none", base_url=embedding_address())
    made = embedding.embed(
        model=MODEL,
        input_type="search_document",
        texts=["a", "b"],
        embedding_types=["float", "ubinary"],
    )
    assert len(made.embeddings.float_) == 2
    assert len(made.embeddings.ubinary[0]) * 8 == len(made.embeddings.float_[0])
    ranked = embedding.rerank(model=MODEL, query="a", documents=["a", "b"], top_n=1)
    assert ranked.results[0].index == 0


run(chat, stream, tools, streamed_tools, forced_tools, schema, errors, embeddings)
