"""Answers of several choices are sent in pieces, with the bytes of one."""

import asyncio

import msgspec
import pytest

from weft.web.http.choices import has_several_choices, send_choices
from weft.web.http.exchange import Exchange


class Choice(msgspec.Struct):
    """With a text of any length."""

    index: int
    text: str


class Answer(msgspec.Struct):
    """A list of the same name comes before the choices and after them."""

    before: dict[str, list[int]]
    choices: list[Choice]
    after: dict[str, list[int]]


def answer_of(num_chars: int) -> Answer:
    """Two choices."""
    choices = [Choice(i, '"choices":[]' + "a" * num_chars) for i in range(2)]
    return Answer({"choices": []}, choices, {"choices": []})


async def sent(answer: Answer) -> list[dict]:
    """ASGI's messages for an answer."""
    messages: list[dict] = []

    async def send(message: dict) -> None:
        messages.append(message)

    scope = {"method": "POST", "path": "/", "headers": []}
    await send_choices(Exchange(scope, send, 60.0), answer)
    return messages


@pytest.mark.parametrize(("num_chars", "is_cut"), [(0, False), (70_000, True)])
async def test_pieces_are_the_same_bytes(num_chars: int, is_cut: bool):
    """A small answer is sent at once, a large one with its length and choice by choice."""
    expected = msgspec.json.encode(answer_of(num_chars))
    head, *parts = await sent(answer_of(num_chars))
    assert b"".join(part.get("body", b"") for part in parts) == expected
    assert dict(head["headers"])[b"content-length"] == str(len(expected)).encode()
    assert (len(parts) > 2) is is_cut
    assert not parts[-1].get("more_body", False)


async def test_others_have_a_turn_between_large_choices():
    """An answer of 128 choices may have a hundred megabytes."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    await sent(answer_of(70_000))
    counting.cancel()
    assert turns >= 4


def test_answers_without_several_choices_are_sent_as_they_are():
    """Most answers have one."""
    assert not has_several_choices({"a": 1})
    assert not has_several_choices(msgspec.structs.replace(answer_of(1), choices=[Choice(0, "a")]))
