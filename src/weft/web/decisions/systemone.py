"""/v1/systemone: questions by name about one state, as TypeSafe's Jev and vLLM answer them."""

import json
from itertools import starmap
from typing import Any

import msgspec

from weft.core.aio.scores import write_scores
from weft.core.errors import BadRequest
from weft.schema.decisions import (
    LabelDiagnostics,
    SystemOneAnswer,
    SystemOneAnswers,
    SystemOneBody,
    SystemOneQuestion,
    SystemOneUsage,
)
from weft.web.decisions.prompt import to_prompts
from weft.web.decisions.question import Option, Question, check_options, check_questions, collect
from weft.web.decisions.read import Reading, num_scores, read_labels
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall, model_endpoint, naming

_NAMES = {"prompt": "state", "prompt_token_ids": "state", "logprob_token_ids": "questions"}
_EXAMPLE = {
    "state": "It came late.",
    "questions": {"is_happy": {"type": "noul", "instructions": "It is good."}},
}


@model_endpoint("POST /v1/systemone", body=SystemOneBody, example=_EXAMPLE, answer=SystemOneAnswers)
async def create_answers(call: ModelCall) -> Answer:
    """Answer named questions about a state with probabilities"""
    body: SystemOneBody = call.body
    head = call.heading("decision")
    call.served.client.info.check_priority(body.priority or 0)
    check_questions("questions", list(body.questions))
    questions = await collect(starmap(_to_question, body.questions.items()))
    messages = [{"role": "user", "content": _state(body)}]
    with naming(_NAMES):
        prompts = await to_prompts(call, messages, questions, body.chat_template_kwargs)
    readings = await read_labels(call, body, prompts.token_ids, prompts.label_ids, _NAMES)
    by_name = dict(zip(body.questions, readings, strict=True))
    return SystemOneAnswers(
        id=head.id,
        created=head.created,
        model=head.model,
        answers=await write_scores(
            num_scores(readings),
            lambda: {name: _to_answer(body.questions[name], one) for name, one in by_name.items()},
        ),
        usage=SystemOneUsage(
            input_tokens=sum(one.num_prompt_tokens for one in readings),
            output_tokens=len(readings),
        ),
        diagnostics={
            name: LabelDiagnostics(label_mass=one.mass, argmax_is_label=one.argmax_is_label)
            for name, one in by_name.items()
        },
    )


def _state(body: SystemOneBody) -> str:
    state: Any = body.state
    text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
    return f"{body.instructions}\n\n{text}" if body.instructions else text


def _to_question(name: str, given: SystemOneQuestion) -> Question:
    place, criteria = f"questions.{name}", given.criteria
    instructions = given.instructions or ""
    match given.type, criteria:
        case "noul", None:
            return Question(place, instructions)
        case "noul", dict() if criteria.keys() <= {"true", "false"}:
            return Question(
                place, instructions, criteria=(criteria.get("true"), criteria.get("false"))
            )
        case "choice", dict():
            check_options(f"{place}.criteria", list(criteria))
            return Question(place, instructions, tuple(Option(*one) for one in criteria.items()))
        case "score", list():
            check_options(f"{place}.criteria", criteria)
            return Question(place, instructions, tuple(map(Option, criteria)))
    raise BadRequest(
        "questions",
        f"{place} must be of type noul (criteria: absent, or an object of true and false), choice "
        "(an object of options) or score (a list of levels)",
    )


def _to_answer(question: SystemOneQuestion, reading: Reading) -> SystemOneAnswer:
    found = reading.probabilities
    criteria = question.criteria
    if question.type == "noul":
        names = ["yes", "no"]
    elif isinstance(criteria, dict):
        names = list(criteria)
    else:
        names = list(map(str, range(len(found))))
    best = reading.best
    answer = SystemOneAnswer(
        type=question.type,
        probabilities=dict(zip(names, found, strict=True)),
        confidence=found[best],
    )
    match question.type, criteria:
        case "noul", _:
            return msgspec.structs.replace(answer, noul=found[0])
        case "score", list():
            expected = sum(level * probability for level, probability in enumerate(found))
            legend = dict(zip(names, criteria, strict=True))
            return msgspec.structs.replace(answer, score=expected, legend=legend)
    return msgspec.structs.replace(answer, choice=names[best])
