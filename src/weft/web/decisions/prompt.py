"""Prompts of questions about one conversation: rendered once, so that all of them share its tokens."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from weft.core.errors import BadRequest
from weft.core.values.types import SamplingParams
from weft.text.parsers.reasoning_families import REASONING_PARSERS
from weft.text.parsers.table import starts_in_reasoning
from weft.text.prompts import check_length
from weft.web.chat.prompt import render
from weft.web.chat.turn import Turn
from weft.web.decisions.labels import NUM_CANDIDATES, Alphabet, alphabet_of
from weft.web.decisions.question import Question
from weft.web.decisions.read import Split
from weft.web.inference.call import ModelCall

_REPLY = "\nReply with one label only."
_NO_REASONING = {"enable_thinking": False, "thinking": False}


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids of each question's prompt, of which the first part is shared, and the tokens of its labels."""

    token_ids: list[Split]
    label_ids: list[tuple[int, ...]]


async def to_prompts(
    call: ModelCall,
    messages: Sequence[Mapping[str, Any]],
    questions: Sequence[Question],
    template_kwargs: Mapping[str, Any] | None = None,
) -> Prompts:
    """Returns the prompts of questions that follow these messages."""
    mark = secrets.token_hex(16)
    turn = Turn(
        options=call.request_options(),
        messages=_with_question(messages, mark),
        params=SamplingParams(),
        template_kwargs={**_NO_REASONING, **(template_kwargs or {})},
    )
    text = await render(call.served, turn)
    before, found, after = text.partition(mark)
    if not found or mark in after:
        raise BadRequest("input", "the model's chat template does not keep the text of messages")
    tokenizer = call.served.tokenizer
    check_length(len(before), tokenizer, call.served.client.info.limits)
    tail = _REPLY + after + _end_of_reasoning(call, text)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    shared = await tokenizer.soon(len(before), partial(encode, before))
    num_chars = len(tail) * NUM_CANDIDATES
    alphabet: Alphabet = await tokenizer.soon(num_chars, partial(alphabet_of, tokenizer, tail))

    def make() -> Prompts:
        labelled = [question.label(alphabet) for question in questions]
        texts = [f"{one.text}{tail}" for one in labelled]
        for text in texts:
            check_length(len(text), tokenizer, call.served.client.info.limits)
        return Prompts(
            [(shared, encode(text)) for text in texts], [one.label_ids for one in labelled]
        )

    return await tokenizer.soon(sum(question.num_chars for question in questions), make)


def _with_question(messages: Sequence[Mapping[str, Any]], mark: str) -> list[Mapping[str, Any]]:
    """The messages with a question at their end: in the user's last message, since many templates take turns."""
    last = messages[-1]
    if last["role"] != "user":
        return [*messages, {"role": "user", "content": mark}]
    content = last["content"]
    if isinstance(content, str):
        joined: Any = f"{content}\n\n{mark}"
    else:
        joined = [*content, {"type": "text", "text": f"\n\n{mark}"}]
    return [*messages[:-1], {**last, "content": joined}]


def _end_of_reasoning(call: ModelCall, text: str) -> str:
    """Text that leads from the end of a prompt to the answer, for models that reason first."""
    name = call.served.options.reasoning_parser
    if name is None:
        return ""
    family = REASONING_PARSERS[name]
    if family.is_harmony:
        return family.reasoning_end
    return f"{family.reasoning_end}\n\n" if starts_in_reasoning(text, family) else ""
