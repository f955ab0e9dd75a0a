"""Calls of the handlers without a server: a body in, an answer or the chunks of a stream out."""

import json
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import openai

from tests.web.serving import RANDOM, call_of, http_serving, serving
from weft.web.http.endpoint import Events
from weft.web.openai import ENDPOINTS
from weft.web.served import Served

_BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def client_of(model=RANDOM, **settings):
    """The official client of a server of that model, and what it serves."""
    async with (
        serving(model, **settings) as served,
        http_serving(served) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client, served


make_call = partial(call_of, _BY_PATH)


async def answer(served: Served, path: str, body: dict, **call) -> dict:
    """The answer in one piece, as a client would read it."""
    made = await _BY_PATH[path].handler(make_call(served, path, body, **call))
    assert not isinstance(made, Events)
    return json.loads(msgspec.json.encode(made))


async def chunks(served: Served, path: str, body: dict, **call) -> list[dict]:
    """The chunks of a stream; `[DONE]` is checked and left out."""
    made = await _BY_PATH[path].handler(make_call(served, path, {**body, "stream": True}, **call))
    assert isinstance(made, Events)
    events = [event async for event in made.source]
    assert events[-1] == b"data: [DONE]\n\n"
    assert all(event.startswith(b"data: {") and event.endswith(b"}\n\n") for event in events[:-1])
    return [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]


async def chat(served: Served, body=None, **fields) -> dict:
    """A chat completion in one piece."""
    return await answer(served, CHAT, {"messages": HELLO, **(body or {}), **fields})


async def chat_chunks(served: Served, body=None, **fields) -> list[dict]:
    """A chat completion's chunks."""
    return await chunks(served, CHAT, {"messages": HELLO, **(body or {}), **fields})


async def complete(served: Served, body=None, **fields) -> dict:
    """A completion in one piece."""
    return await answer(served, COMPLETIONS, {"prompt": "hello", **(body or {}), **fields})


async def complete_chunks(served: Served, body=None, **fields) -> list[dict]:
    """A completion's chunks."""
    return await chunks(served, COMPLETIONS, {"prompt": "hello", **(body or {}), **fields})


def folded_chat(stream: list[dict]) -> list[dict]:
    """The choices that a client makes of a chat's stream by appending what is there."""
    choices: dict[int, dict] = {}
    for chunk in stream:
        for news in chunk["choices"]:
            choice = choices.setdefault(
                news["index"],
                {"content": "", "reasoning": None, "calls": {}, "logprobs": [], "token_ids": []},
            )
            delta = news["delta"]
            choice["content"] += delta.get("content", "")
            if "reasoning" in delta:
                choice["reasoning"] = (choice["reasoning"] or "") + delta["reasoning"]
            choice["token_ids"] += news.get("token_ids", [])
            choice["logprobs"] += (news["logprobs"] or {"content": []})["content"]
            for call in delta.get("tool_calls", []):
                known = choice["calls"].setdefault(call["index"], ["", ""])
                known[0] += call["function"].get("name", "")
                known[1] += call["function"].get("arguments", "")
            if news["finish_reason"] is not None:
                assert "finish_reason" not in choice, "told twice"
                choice["finish_reason"] = news["finish_reason"]
                choice["stop_reason"] = news["stop_reason"]
    return [choices[index] for index in sorted(choices)]


def flat_chat(whole: dict) -> list[dict]:
    """The choices of an answer in one piece, in the same words."""
    return [
        {
            "content": choice["message"]["content"] or "",
            "reasoning": choice["message"]["reasoning"],
            "calls": {
                index: [call["function"]["name"], call["function"]["arguments"]]
                for index, call in enumerate(choice["message"]["tool_calls"])
            },
            "logprobs": (choice["logprobs"] or {"content": []})["content"],
            "token_ids": choice["token_ids"] or [],
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice["stop_reason"],
        }
        for choice in whole["choices"]
    ]


def folded_texts(stream: list[dict]) -> list[dict]:
    """The same of a completion's stream."""
    choices: dict[int, dict] = {}
    for chunk in stream:
        for news in chunk["choices"]:
            index = news["index"]
            if index not in choices:
                choices[index] = dict(news)
                continue
            known = choices[index]
            known["text"] += news["text"]
            if news["token_ids"] is not None:
                known["token_ids"] = known["token_ids"] + news["token_ids"]
            if news["logprobs"] is not None:
                known["logprobs"] = {
                    key: rows if rows is None else known["logprobs"][key] + rows
                    for key, rows in news["logprobs"].items()
                }
            assert known["finish_reason"] is None
            known["finish_reason"], known["stop_reason"] = (
                news["finish_reason"],
                news["stop_reason"],
            )
    return [choices[index] for index in sorted(choices)]


def flat_texts(whole: dict) -> list[dict]:
    """The choices of an answer in one piece, in the same words."""
    return [
        {key: value for key, value in choice.items() if key != "prompt_logprobs"}
        for choice in whole["choices"]
    ]
