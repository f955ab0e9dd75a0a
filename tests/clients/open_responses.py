"""The cases of Open Responses' compliance suite, with every object checked against the types of its document."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import openresponses_types
from asking import (
    ANSWER,
    CAPITAL,
    MODEL,
    RESULT,
    WEATHER,
    WEATHER_SCHEMA,
    address,
    is_told,
    refused,
    run,
)
from openresponses_types import CompactResource, ResponseResource

TOOL = {
    "type": "function", "name": "get_weather", "description": "Get the weather in a city",
    "parameters": WEATHER_SCHEMA,
}  # fmt: skip
PICTURE = "data:image/png;base64,iVBORw0KGgo="
EVENT_TYPES = {
    next(iter(kind.model_fields["type"].annotation)).value: kind
    for name, kind in vars(openresponses_types).items()
    if name.endswith("StreamingEvent")
}


def opened(path: str, body: dict):
    """The answer to a request."""
    data = json.dumps({"model": MODEL, "temperature": 0, **body}).encode()
    asked = urllib.request.Request(
        f"{address()}/v1{path}", data, {"content-type": "application/json"}
    )
    return urllib.request.urlopen(asked, timeout=120)


def create(given: object, **fields: object) -> ResponseResource:
    """A response in one piece."""
    with opened("/responses", {"input": given, **fields}) as answer:
        made = ResponseResource.model_validate_json(answer.read())
    assert made.status == "completed"
    assert made.output
    return made


def streamed(given: object, **fields: object) -> Iterator[dict]:
    """The events of a response; each has the type that the document has for it."""
    with opened("/responses", {"input": given, "stream": True, **fields}) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if event["type"] in EVENT_TYPES:
                    EVENT_TYPES[event["type"]].model_validate(event)
                yield event


def said(made: ResponseResource) -> str:
    """All text of a response."""
    output = made.model_dump()["output"]
    return "".join(part["text"] for item in output for part in item.get("content") or ())


def message(text: str, role: str = "user") -> dict:
    """A message as an item."""
    return {"type": "message", "role": role, "content": text}


def refusal(body: dict) -> dict:
    """The error of a request that is refused."""
    error = refused(urllib.error.HTTPError, opened, "/responses", body)
    assert error.code == 400
    return json.load(error)["error"]


def chat() -> None:
    """basic-response, system-prompt, multi-turn."""
    assert ANSWER in said(create([message(CAPITAL)]))
    create([message("You are a pirate.", "system"), message("Say hello.")])
    create([message("My name is Alice."), message("Hello Alice!", "assistant"), message(CAPITAL)])


def stream() -> None:
    """streaming-response."""
    events = list(streamed([message(CAPITAL)]))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert ANSWER in said(ResponseResource.model_validate(events[-1]["response"]))
    assert events[-1]["type"] == "response.completed"


def tools() -> None:
    """tool-calling, function-call-roundtrip."""
    made = create([message(WEATHER)], tools=[TOOL])
    (call,) = [item for item in made.model_dump()["output"] if item["type"] == "function_call"]
    forced = create(
        [message(WEATHER)], tools=[TOOL], tool_choice={"type": "function", "name": "get_weather"}
    )
    assert forced.model_dump()["output"][0]["type"] == "function_call"
    sent = {key: call[key] for key in ("type", "call_id", "name", "arguments")}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}
    assert is_told(said(create([message(WEATHER), sent, output], tools=[TOOL])))


def streamed_tools() -> None:
    """tool-calling-streaming."""
    events = list(streamed([message(WEATHER)], tools=[TOOL]))
    kinds = {event["type"] for event in events}
    assert {
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
    } <= kinds
    for kind in ("response.output_item.added", "response.output_item.done"):
        assert "function_call" in [
            event["item"]["type"] for event in events if event["type"] == kind
        ]


def responses() -> None:
    """previous-response-id, and the compacted conversation."""
    first = create("Remember this code word: papaya. Reply with only OK.")
    second = create("What code word did I ask you to remember?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    with opened("/responses/compact", {"input": [message(CAPITAL)]}) as answer:
        compacted = CompactResource.model_validate_json(answer.read())
    create([*compacted.model_dump(mode="json")["output"], message(CAPITAL)])


def errors() -> None:
    """image-input and file-input, which a model of text refuses by name; so are tools that no server here has."""
    parts = {
        "input_image": {"type": "input_image", "image_url": PICTURE},
        "input_file": {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0="},
    }
    for name, part in parts.items():
        given = {"type": "message", "role": "user", "content": [part]}
        assert name in refusal({"input": [given]})["message"], name
    with opened("/responses", {"input": CAPITAL, "tools": [{"type": "web_search"}]}) as answer:
        assert "web_search" in answer.headers["warning"]


run(chat, stream, tools, streamed_tools, responses, errors)
