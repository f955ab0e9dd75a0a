"""/v1/decisions, OpenAI's API of questions about one input: predicates, choices and scores."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any

from weft.core.aio.scores import write_scores
from weft.core.errors import BadRequest
from weft.schema.decisions import (
    ChoiceAnswer,
    ChoiceProbability,
    DecisionAnswer,
    DecisionInputDetails,
    DecisionQuestion,
    DecisionsAnswer,
    DecisionsBody,
    DecisionUsage,
    PredicateAnswer,
    RefusalAnswer,
    ScoreAnswer,
    ScoreProbability,
)
from weft.text.content import Place
from weft.web.decisions.prompt import to_prompts
from weft.web.decisions.question import Option, Question, check_options, check_questions, collect
from weft.web.decisions.read import Reading, num_scores, read_labels
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall, model_endpoint, naming
from weft.web.items.items import read_input

_ITEMS = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)
_NAMES = {"prompt": "input", "prompt_token_ids": "input", "logprob_token_ids": "questions"}
_EXAMPLE = {
    "input": "It came late.",
    "questions": [{"type": "predicate", "instructions": "It is good."}],
}
# Limits of a part of type input_json.
_MAX_DEPTH, _MAX_VALUES, _MAX_JSON_BYTES = 32, 10_000, 256 * 1024
# A question is refused if its labels have less than this probability together, and another token has the most.
_MIN_MASS = 0.01


@model_endpoint("POST /v1/decisions", body=DecisionsBody, example=_EXAMPLE, answer=DecisionsAnswer)
async def create_decisions(call: ModelCall) -> Answer:
    """Answer questions about one input with probabilities"""
    body: DecisionsBody = call.body
    call.served.client.info.check_priority(body.priority or 0)
    check_questions("questions", body.questions)
    questions = await collect(starmap(_to_question, enumerate(body.questions)))
    messages = await _messages(body.input)
    with naming(_NAMES):
        prompts = await to_prompts(call, messages, questions)
    readings = await read_labels(call, body, prompts.token_ids, prompts.label_ids, _NAMES)
    return DecisionsAnswer(
        model=call.model,
        answers=await write_scores(
            num_scores(readings), lambda: list(map(_to_answer, body.questions, readings))
        ),
        usage=_usage(readings),
    )


# -- body to questions --------------------------------------------------------------------------


async def _messages(given: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The input as messages of a chat."""
    if not given:
        raise BadRequest("input", "input must be a text or a list of items, and not empty")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    items = [dict(item) for item in given]
    for position, item in enumerate(items):
        kind = item.get("type", "message")
        if kind not in _ITEMS:
            raise Place("input", "input")[position].error(
                f".type must be one of {', '.join(_ITEMS)}, got {str(kind)[:40]!a}"
            )
        if isinstance(item.get("content"), list):
            place = Place("input", "input")[position].field("content")
            item["content"] = _texts(item["content"], place)
    return (await read_input(items, find_item=lambda _: None)).messages


def _texts(parts: Sequence[Any], place: Place) -> list[Any]:
    """The parts, with JSON as text."""
    return [
        {"type": "input_text", "text": _json_text(part, place[position])}
        if isinstance(part, dict) and part.get("type") == "input_json"
        else part
        for position, part in enumerate(parts)
    ]


def _json_text(part: Mapping[str, Any], place: Place) -> str:
    data = part.get("data")
    is_list = isinstance(data, list) and all(isinstance(one, dict) for one in data)
    if not (isinstance(data, dict) or is_list):
        raise place.error(".data must be an object or a list of objects")
    depth, num_values = _extent(data)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    if depth > _MAX_DEPTH or num_values > _MAX_VALUES or len(text.encode()) > _MAX_JSON_BYTES:
        raise place.error(
            f".data may have {_MAX_DEPTH} levels, {_MAX_VALUES} values and {_MAX_JSON_BYTES} bytes at most"
        )
    return text


def _extent(data: Any) -> tuple[int, int]:
    """The depth of nested containers, and the number of values."""
    depth, num_values, level = 0, 0, [data]
    while level:
        num_values += len(level)
        containers = [value for value in level if isinstance(value, dict | list)]
        depth += bool(containers)
        level = [inner for value in containers for inner in _inner(value)]
    return depth, num_values


def _inner(value: dict[str, Any] | list[Any]) -> Iterator[Any]:
    yield from value.values() if isinstance(value, dict) else value


def _to_question(position: int, given: DecisionQuestion) -> Question:
    place = f"questions[{position}]"
    instructions = _instructions(given, place)
    for name, kind in (("choices", "choice"), ("levels", "score")):
        if (getattr(given, name) is not None) != (given.type == kind):
            raise BadRequest("questions", f"{place}.{name} and type {kind} need each other")
    match given:
        case DecisionQuestion(type="predicate"):
            return Question(place, instructions)
        case DecisionQuestion(choices=list(choices)):
            check_options(f"{place}.choices", [choice.value for choice in choices])
            options = tuple(Option(_shown(one.value), one.description) for one in choices)
        case DecisionQuestion(levels=list(levels)):
            check_options(f"{place}.levels", [level.label for level in levels])
            options = tuple(Option(level.label, level.description) for level in levels)
        case _:
            raise BadRequest(
                "questions",
                f"{place}.type must be predicate, choice or score, got {given.type[:40]!a}",
            )
    return Question(place, instructions, options)


def _instructions(given: DecisionQuestion, place: str) -> str:
    if isinstance(given.instructions, str):
        text = given.instructions
    else:
        at = Place("questions", f"{place}.instructions")
        parts = _texts(given.instructions, at)
        for number, part in enumerate(parts):
            if part.get("type") != "input_text" or not isinstance(part.get("text"), str):
                raise at[number].error(" must be of type input_text or input_json")
        text = "\n".join(part["text"] for part in parts)
    if not text:
        raise BadRequest("questions", f"{place}.instructions must not be empty")
    return text


def _shown(value: bool | str) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# -- readings to answers ------------------------------------------------------------------------


def _to_answer(question: DecisionQuestion, reading: Reading) -> DecisionAnswer:
    mass = reading.mass
    if not reading.argmax_is_label and mass is not None and mass < _MIN_MASS:
        return RefusalAnswer(name=question.name)
    found = reading.probabilities
    best = reading.best
    if question.choices is not None:
        values = [choice.value for choice in question.choices]
        return ChoiceAnswer(
            name=question.name,
            choice=values[best],
            confidence=found[best],
            probabilities=[
                ChoiceProbability(value=value, probability=probability)
                for value, probability in zip(values, found, strict=True)
            ],
        )
    if question.levels is not None:
        return ScoreAnswer(
            name=question.name,
            score=sum(value * probability for value, probability in enumerate(found)),
            confidence=found[best],
            probabilities=[
                ScoreProbability(label=level.label, value=value, probability=probability)
                for value, (level, probability) in enumerate(
                    zip(question.levels, found, strict=True)
                )
            ],
        )
    return PredicateAnswer(name=question.name, probability=found[0])


def _usage(readings: Sequence[Reading]) -> DecisionUsage:
    num_input = sum(reading.num_prompt_tokens for reading in readings)
    num_cached = sum(reading.num_cached_tokens for reading in readings)
    return DecisionUsage(
        input_tokens=num_input,
        input_tokens_details=DecisionInputDetails(
            cached_tokens=num_cached, cache_write_tokens=num_input - num_cached
        ),
        output_tokens=len(readings),
        total_tokens=num_input + len(readings),
    )
