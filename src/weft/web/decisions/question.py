"""A question with its options, and the text that asks it: the same for every decision API."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.core.errors import BadRequest
from weft.web.decisions.labels import YES_NO, Alphabet

MAX_QUESTIONS = 400
MAX_OPTIONS = 255
_AT_ONCE = 16  # questions that are made in one turn of the event loop: a few milliseconds with the most options


@dataclass(frozen=True, slots=True)
class Option:
    """An option's text, and what it means."""

    text: str
    description: str | None = None

    @property
    def num_chars(self) -> int:
        """Length of the texts."""
        return len(self.text) + len(self.description or "")

    def line(self, label: str) -> str:
        """The option's line in the prompt."""
        described = f" ({self.description})" if self.description else ""
        return f"{label}. {self.text}{described}"


@dataclass(frozen=True, slots=True)
class Question:
    """A question. `place` is its path in the body; a question without options asks whether a statement is true.

    `criteria` may say what yes and no mean.
    """

    place: str
    instructions: str
    options: tuple[Option, ...] = ()
    criteria: tuple[str | None, str | None] = (None, None)

    @property
    def num_chars(self) -> int:
        """Length of all texts."""
        num_criteria = sum(len(one or "") for one in self.criteria)
        return len(self.instructions) + num_criteria + sum(one.num_chars for one in self.options)

    def label(self, alphabet: Alphabet) -> "Labelled":
        """Returns the question's text, with a label for each option."""
        if not self.options and alphabet.yes_no is not None:
            meanings = [
                f"{word}: {meaning}"
                for word, meaning in zip(YES_NO, self.criteria, strict=True)
                if meaning
            ]
            lines = [
                "Is this statement about the input true: yes or no?",
                self.instructions,
                *meanings,
            ]
            return Labelled("\n".join(lines), alphabet.yes_no)
        options = self.options or tuple(map(Option, YES_NO, self.criteria))
        if len(options) > len(alphabet.labels):
            raise BadRequest(
                self.place,
                f"{self.place} has {len(options)} options; this model's tokenizer has single tokens "
                f"for {len(alphabet.labels)} labels",
            )
        labels = alphabet.labels[: len(options)]
        lines = [option.line(label) for option, (label, _) in zip(options, labels, strict=True)]
        return Labelled(
            "\n".join([self.instructions, *lines]), tuple(token_id for _, token_id in labels)
        )


@dataclass(frozen=True, slots=True)
class Labelled:
    """The text of a question, and the token of each option's label."""

    text: str
    label_ids: tuple[int, ...]


def check_questions(name: str, questions: Sequence[object]) -> None:
    """Raises `BadRequest` for no questions, or too many."""
    if not 1 <= len(questions) <= MAX_QUESTIONS:
        raise BadRequest(
            name, f"{name} must hold 1 to {MAX_QUESTIONS} questions, got {len(questions)}"
        )


def check_options(place: str, texts: Sequence[object]) -> None:
    """Raises `BadRequest` for fewer than two options, too many, or an option that is there twice."""
    if not 2 <= len(texts) <= MAX_OPTIONS:
        raise BadRequest(place, f"{place} must hold 2 to {MAX_OPTIONS} options, got {len(texts)}")
    if len({(type(text), text) for text in texts}) != len(texts):
        raise BadRequest(place, f"{place} holds an option twice")


async def collect(questions: Iterable[Question]) -> list[Question]:
    """Returns the questions, which are made as they are taken; other tasks get turns in between."""
    found: list[Question] = []
    for question in questions:
        if len(found) % _AT_ONCE == 0:
            await asyncio.sleep(0)
        found.append(question)
    return found
