"""LangChain's `ChatOpenAI` and `OpenAIEmbeddings`."""

import openai
from asking import (
    ANSWER,
    CAPITAL,
    MODEL,
    PERSON_SCHEMA,
    RESULT,
    WEATHER,
    WEATHER_ARGUMENTS,
    address,
    embedding_address,
    is_person,
    is_told,
    openai_tools,
    refused,
    run,
)
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

asked = {"model": MODEL, "api_key": "none", "temperature": 0, "max_retries": 0}
model = ChatOpenAI(base_url=f"{address()}/v1", max_tokens=200, **asked)


def chat() -> None:
    """An answer with its usage."""
    made = model.invoke(CAPITAL)
    assert ANSWER in made.content
    assert made.usage_metadata["output_tokens"] > 0


def stream() -> None:
    """Chunks add up to a message."""
    pieces = list(model.stream(CAPITAL))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert ANSWER in whole.content


def tools() -> None:
    """Called, and told what came of it."""
    bound = model.bind_tools(openai_tools())
    messages = [HumanMessage(WEATHER)]
    made = bound.invoke(messages)
    (call,) = made.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", WEATHER_ARGUMENTS)
    messages += [made, ToolMessage(RESULT, tool_call_id=call["id"])]
    assert is_told(bound.invoke(messages).content)


def streamed_tools() -> None:
    """Pieces of a call are merged by their index."""
    whole = None
    for piece in model.bind_tools(openai_tools()).stream(WEATHER):
        whole = piece if whole is None else whole + piece
    assert [call["args"] for call in whole.tool_calls] == [WEATHER_ARGUMENTS]


def forced_tools() -> None:
    """ "any" is OpenAI's "required"; a name is a name."""
    bound = model.bind_tools(openai_tools(), tool_choice="any", parallel_tool_calls=False)
    assert len(bound.invoke(CAPITAL).tool_calls) == 1
    bound = model.bind_tools(openai_tools(), tool_choice="set_timer")
    (call,) = bound.invoke("Set a timer for 12 minutes.").tool_calls
    assert call["name"] == "set_timer"
    assert isinstance(call["args"]["minutes"], int)


def schema() -> None:
    """By response format, and by a tool that has to be called."""
    titled = {"title": "person", "description": "A person", **PERSON_SCHEMA}
    for method in ("json_schema", "function_calling"):
        assert is_person(model.with_structured_output(titled, method=method).invoke(CAPITAL))


def errors() -> None:
    """Those of the package below."""
    stranger = ChatOpenAI(base_url=f"{address()}/v1", **asked | {"model": "nobody"})
    refused(openai.NotFoundError, stranger.invoke, CAPITAL)


def responses() -> None:
    """The newer API, whole and streamed, and with tools."""
    newer = ChatOpenAI(base_url=f"{address()}/v1", use_responses_api=True, **asked)
    assert ANSWER in newer.invoke(CAPITAL).text
    assert ANSWER in "".join(piece.text for piece in newer.stream(CAPITAL))
    bound = newer.bind_tools(openai_tools())
    messages = [HumanMessage(WEATHER), bound.invoke(WEATHER)]
    (call,) = messages[-1].tool_calls
    assert call["args"] == WEATHER_ARGUMENTS
    messages.append(ToolMessage(RESULT, tool_call_id=call["id"]))
    assert is_told(bound.invoke(messages).text)


def embeddings() -> None:
    """Texts as they are: its own way to count tokens needs a vocabulary from elsewhere."""
    embedder = OpenAIEmbeddings(
        model=MODEL, api_key="none", base_url=f"{embedding_address()}/v1",
        check_embedding_ctx_length=False,
    )  # fmt: skip
    one, two = embedder.embed_documents(["one", "two"])
    assert len(one) == len(two) == len(embedder.embed_query("one"))


run(chat, stream, tools, streamed_tools, forced_tools, schema, errors, responses, embeddings)
