"""LlamaIndex's `OpenAILike` and `OpenAILikeEmbedding`."""

import openai
from asking import (
    ANSWER,
    CAPITAL,
    MODEL,
    RESULT,
    WEATHER,
    WEATHER_ARGUMENTS,
    address,
    embedding_address,
    is_told,
    refused,
    run,
)
from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

asked = {"api_key": "none", "max_retries": 0, "temperature": 0, "max_tokens": 200}
server = {"api_base": f"{address()}/v1", "context_window": 1024, "is_chat_model": True}
model = OpenAILike(model=MODEL, is_function_calling_model=True, **server, **asked)


class Person(BaseModel):
    """Somebody."""

    age: int = Field(ge=0, le=120)
    is_tall: bool


def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return RESULT


def set_timer(minutes: int) -> str:
    """Start a timer"""
    return "started"


functions = [FunctionTool.from_defaults(function) for function in (get_weather, set_timer)]


def chat() -> None:
    """As a conversation, and as a text to go on with."""
    assert ANSWER in model.chat([ChatMessage(CAPITAL)]).message.content
    plain = OpenAILike(
        model=MODEL, **server | {"is_chat_model": False}, **asked | {"max_tokens": 4}
    )
    assert ANSWER in plain.complete("The capital of France is").text


def stream() -> None:
    """What has come so far grows."""
    pieces = list(model.stream_chat([ChatMessage(CAPITAL)]))
    assert ANSWER in pieces[-1].message.content


def tools() -> None:
    """Called, and told what came of it."""
    history = [ChatMessage(WEATHER)]
    made = model.chat_with_tools(functions, chat_history=history)
    (call,) = model.get_tool_calls_from_response(made)
    assert (call.tool_name, call.tool_kwargs) == ("get_weather", WEATHER_ARGUMENTS)
    told = {"tool_call_id": call.tool_id}
    history += [
        made.message,
        ChatMessage(RESULT, role=MessageRole.TOOL, additional_kwargs=told),
    ]
    assert is_told(model.chat_with_tools(functions, chat_history=history).message.content)


def streamed_tools() -> None:
    """The last piece has the whole call."""
    pieces = list(model.stream_chat_with_tools(functions, chat_history=[ChatMessage(WEATHER)]))
    (call,) = model.get_tool_calls_from_response(pieces[-1])
    assert call.tool_kwargs == WEATHER_ARGUMENTS


def forced_tools() -> None:
    """Some call whatever was asked, and one by name."""
    history = [ChatMessage(CAPITAL)]
    made = model.chat_with_tools(functions, chat_history=history, tool_required=True)
    assert model.get_tool_calls_from_response(made)
    made = model.chat_with_tools(functions, chat_history=history, tool_choice="set_timer")
    (call,) = model.get_tool_calls_from_response(made)
    assert isinstance(call.tool_kwargs["minutes"], int)


def schema() -> None:
    """As an object of the class."""
    made = model.as_structured_llm(Person).chat([ChatMessage(CAPITAL)])
    assert isinstance(made.raw, Person)


def errors() -> None:
    """Those of the package below."""
    stranger = OpenAILike(model="nobody", **server, **asked)
    refused(openai.NotFoundError, stranger.chat, [ChatMessage(CAPITAL)])


def embeddings() -> None:
    """One by one and several at once."""
    embedder = OpenAILikeEmbedding(
        model_name=MODEL, api_base=f"{embedding_address()}/v1", api_key="none"
    )
    one, two = embedder.get_text_embedding_batch(["one", "two"])
    assert len(one) == len(two) == len(embedder.get_query_embedding("one"))


run(chat, stream, tools, streamed_tools, forced_tools, schema, errors, embeddings)
