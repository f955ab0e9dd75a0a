"""/api/chat: converts the body to a `Turn`, and the turn's events to lines of JSON or one answer."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from weft.core.errors import BadRequest
from weft.schema.ollama import (
    CalledTool,
    OfferedTool,
    OllamaChatAnswer,
    OllamaChatBody,
    OllamaMessage,
    Timings,
    WrittenMessage,
)
from weft.web.chat.run import run_turn
from weft.web.chat.turn import Tool, Turn
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall
from weft.web.ollama.options import NAMES, check_load, deviations, to_params, to_template_kwargs
from weft.web.ollama.stream import answer_events, is_streamed, ollama_endpoint
from weft.web.ollama.writer import Piece, now


@ollama_endpoint(
    "POST /api/chat",
    body=OllamaChatBody,
    deviations=deviations,
    example={"messages": [{"role": "user", "content": "Hello!"}], "stream": False},
    answer=OllamaChatAnswer,
    event=OllamaChatAnswer,
)
async def create_chat(call: ModelCall) -> Answer:
    """The next message of a conversation in Ollama's words, streamed or in one piece"""
    body: OllamaChatBody = call.body
    if not body.messages:
        return chat_answer(body, Piece(end=Timings(done_reason=check_load(body.keep_alive))))
    turn = to_turn(call, body)
    events = run_turn(call.served, turn)
    return await answer_events(call, events, turn.params, partial(chat_answer, body))


def chat_answer(body: OllamaChatBody, piece: Piece) -> OllamaChatAnswer:
    """A piece of an answer in the form of /api/chat."""
    message = WrittenMessage(
        content=piece.content,
        thinking=piece.thinking or UNSET,
        tool_calls=piece.calls or UNSET,
    )
    end = piece.end
    return OllamaChatAnswer(
        model=body.model,
        created_at=now(),
        message=message,
        logprobs=piece.logprobs,
        done=end is not None,
        **({} if end is None else msgspec.structs.asdict(end)),
    )


def to_turn(call: ModelCall, body: OllamaChatBody) -> Turn:
    """Converts a body to a turn; every field of the body is used or refused."""
    messages = to_messages(body.messages or ())
    continues = messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")
    return Turn(
        options=call.request_options(),
        messages=messages,
        params=to_params(call.served, body),
        tools=[_tool(tool, position) for position, tool in enumerate(body.tools or ())],
        template_kwargs=to_template_kwargs(body.think),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        include_reasoning=body.think is not False,
        is_streamed=is_streamed(body),
        names=NAMES,
    )


def _tool(tool: OfferedTool, position: int) -> Tool:
    if tool.type not in (None, "function"):
        raise BadRequest(
            "tools", f"tools[{position}].type must be function, got {tool.type[:40]!a}"
        )
    function = tool.function
    return Tool(
        name=function.name, description=function.description, parameters=function.parameters
    )


def to_messages(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """The conversation in OpenAI's form. Results of tools that name no call answer the calls in order."""
    made: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []  # id and name of each call without a result
    for message in messages:
        written: dict[str, Any] = {"role": message.role, "content": _content(message)}
        if message.thinking:
            written["reasoning"] = message.thinking
        if message.tool_calls:
            calls = [_call(call, len(made), index) for index, call in enumerate(message.tool_calls)]
            written["tool_calls"] = calls
            open_calls = [(call["id"], call["function"]["name"]) for call in calls]
        if message.role == "tool":
            written |= _result(message, open_calls)
        made.append(written)
    return made


def _content(message: OllamaMessage) -> str | list[dict[str, Any]]:
    """The text of a message; with images, parts."""
    text = message.content or ""
    return [*to_images(message.images), {"type": "text", "text": text}] if message.images else text


def to_images(images: Sequence[str]) -> list[dict[str, Any]]:
    """Parts of OpenAI's messages for images in base64."""
    return [
        {"type": "image_url", "image_url": {"url": f"data:image/*;base64,{image}"}}
        for image in images
    ]


def _call(call: CalledTool, position: int, index: int) -> dict[str, Any]:
    function = call.function
    return {
        "id": call.id or f"call_{position}_{index}",
        "type": "function",
        "function": {
            "name": function.name,
            "arguments": json.dumps(function.arguments, ensure_ascii=False),
        },
    }


def _result(message: OllamaMessage, open_calls: list[tuple[str, str]]) -> dict[str, Any]:
    """The call that a result belongs to: by its id, by the tool's name, or the first one without a result."""
    if message.tool_call_id:
        found = [call for call in open_calls if call[0] == message.tool_call_id]
    else:
        found = [call for call in open_calls if message.tool_name in (None, "", call[1])]
    call_id, name = found[0] if found else (message.tool_call_id, message.tool_name)
    if found:
        open_calls.remove(found[0])
    return {"tool_call_id": call_id or "call_0", "name": message.tool_name or name or ""}
