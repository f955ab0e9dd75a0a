"""What every client asks of embedded:tiny, a toy that was taught capitals and a few tools.

Scripts beside this file run in environments of their own and import nothing of Weft. Each is given the
address of a server, that of one that embeds, and the names of the parts to run.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable

MODEL = "tiny"
CAPITAL = "What is the capital of France?"
ANSWER = "Paris"
WEATHER = "What is the weather in Oslo?"
WEATHER_ARGUMENTS = {"city": "Oslo"}
RESULT = '{"temperature": 21, "condition": "sunny"}'

WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TIMER_SCHEMA = {
    "type": "object",
    "properties": {"minutes": {"type": "integer"}},
    "required": ["minutes"],
}
# Bounded, so that a toy cannot fill the context before it closes what it has opened.
PERSON_SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}, "is_tall": {"type": "boolean"}},
    "required": ["age", "is_tall"],
    "additionalProperties": False,
}  # fmt: skip


def ask(text: str = CAPITAL) -> list[dict]:
    """A conversation of one question."""
    return [{"role": "user", "content": text}]


def openai_tools() -> list[dict]:
    """The tools, as OpenAI's chat API takes them."""
    return [
        {
            "type": "function",
            "function": {"name": name, "description": text, "parameters": schema},
        }
        for name, text, schema in (
            ("get_weather", "Get the weather in a city", WEATHER_SCHEMA),
            ("set_timer", "Start a timer", TIMER_SCHEMA),
        )
    ]


def is_person(value: object) -> bool:
    """Whether a value, or its JSON text, is what `PERSON_SCHEMA` says."""
    if isinstance(value, str):
        value = json.loads(value)
    return (
        isinstance(value, dict)
        and set(value) == {"age", "is_tall"}
        and 0 <= value["age"] <= 120
        and isinstance(value["is_tall"], bool)
    )


def is_told(text: str) -> bool:
    """Whether an answer says what the tool's result says."""
    return "21" in text and "sunny" in text


def ended(retrieve: Callable, name: str, field: str, states: tuple[str, ...]) -> object:
    """An object, once its `field` has one of these states."""
    for _ in range(600):
        found = retrieve(name)
        if getattr(found, field) in states:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{name} stays {getattr(found, field)}")


def refused(
    kind: type[Exception] | tuple[type[Exception], ...],
    call: Callable[..., object],
    *given,
    **asked,
) -> Exception:
    """The error of that kind that a call has to end in."""
    try:
        call(*given, **asked)
    except kind as error:
        return error
    raise AssertionError(f"{given} {asked} was not refused")


def address() -> str:
    """The server's address, without a path."""
    return sys.argv[1]


def embedding_address() -> str:
    """That of the server that embeds."""
    return sys.argv[2]


def run(*parts: Callable[[], None]) -> None:
    """Run those parts that were asked for; tell how each went, and fail if one did."""
    told: dict[str, str] = {}
    for part in parts:
        if part.__name__ in sys.argv[3:]:
            try:
                part()
                told[part.__name__] = "ok"
            except Exception:  # noqa: BLE001 - told, with where it happened
                told[part.__name__] = traceback.format_exc()
    print(json.dumps(told))
