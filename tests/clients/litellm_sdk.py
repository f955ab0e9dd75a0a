"""LiteLLM, which is told by a prefix whose API it speaks to."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks a site of prices first

import litellm
from asking import (
    ANSWER,
    CAPITAL,
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

asked = {
    "model": f"openai/{MODEL}", "api_base": f"{address()}/v1", "api_key": "none", "temperature": 0,
    "num_retries": 0, "max_tokens": 200,
}  # fmt: skip


def chat() -> None:
    """By either of its names for servers of this kind."""
    for prefix in ("openai", "hosted_vllm"):
        made = litellm.completion(messages=ask(), **asked | {"model": f"{prefix}/{MODEL}"})
        assert ANSWER in made.choices[0].message.content
        assert made.usage.completion_tokens > 0


def stream() -> None:
    """Pieces, and what they add up to."""
    chunks = list(litellm.completion(messages=ask(), stream=True, **asked))
    whole = litellm.stream_chunk_builder(chunks)
    assert ANSWER in whole.choices[0].message.content


def tools() -> None:
    """Called, and told what came of it."""
    messages = ask(WEATHER)
    message = (
        litellm.completion(messages=messages, tools=openai_tools(), **asked).choices[0].message
    )
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == WEATHER_ARGUMENTS
    messages += [
        message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": RESULT},
    ]
    made = litellm.completion(messages=messages, tools=openai_tools(), **asked)
    assert is_told(made.choices[0].message.content)


def streamed_tools() -> None:
    """Pieces of a call are joined by the package."""
    chunks = list(
        litellm.completion(messages=ask(WEATHER), tools=openai_tools(), stream=True, **asked)
    )
    (call,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == WEATHER_ARGUMENTS


def forced_tools() -> None:
    """Some call whatever was asked, and one by name."""
    named = {"type": "function", "function": {"name": "set_timer"}}
    for choice in ("required", named):
        made = litellm.completion(
            messages=ask(),
            tools=openai_tools(),
            tool_choice=choice,
            parallel_tool_calls=False,
            **asked,
        )
        (call,) = made.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)


def schema() -> None:
    """JSON of the shape asked for."""
    shape = {"name": "person", "schema": PERSON_SCHEMA, "strict": True}
    made = litellm.completion(
        messages=ask(), response_format={"type": "json_schema", "json_schema": shape}, **asked
    )
    assert is_person(made.choices[0].message.content)


def errors() -> None:
    """Its own classes, by our status and code."""
    for error, wrong in (
        (litellm.NotFoundError, {"model": "openai/nobody"}),
        (litellm.BadRequestError, {"temperature": 9}),
        (litellm.ContextWindowExceededError, {"max_tokens": 10**6}),
    ):
        refused(error, litellm.completion, messages=ask(), **asked | wrong)


def responses() -> None:
    """The newer API."""
    made = litellm.responses(
        model=asked["model"],
        api_base=asked["api_base"],
        api_key="none",
        input=CAPITAL,
        temperature=0,
    )
    assert ANSWER in json.dumps(made.model_dump(), default=str)


def embeddings() -> None:
    """Plain numbers, which it asks for by name."""
    made = litellm.embedding(
        model=f"hosted_vllm/{MODEL}", api_base=f"{embedding_address()}/v1", api_key="none",
        input=["one", "two"],
    )  # fmt: skip
    one, two = (entry["embedding"] for entry in made.data)
    assert len(one) == len(two) > 0


run(chat, stream, tools, streamed_tools, forced_tools, schema, errors, responses, embeddings)
