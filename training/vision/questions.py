"""Questions about a drawing, or about two, and their answers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from training.vision.drawings import COLOURS, SHAPES, Drawing, Figure

NUMBERS = ("no", "one", "two", "three", "four", "five")
Exchange = tuple[str, str]  # a question and its answer
Maker = Callable[[random.Random, Drawing], Exchange]

DESCRIBE = (
    "What is in the picture?", "What is this?", "What do you see?", "Describe the picture.", "What is it?", "What does the picture show?",
    "What is in this image?", "Describe this image.", "What's in this image?", "What can you see?", "Tell me what you see.",
    "What do you see in this picture?", "Describe it.", "What is shown here?",
)  # fmt: skip
WITHOUT = (
    "I see no picture. Please add one.",
    (*DESCRIBE[:6], "What colour is it?", "How many shapes are there?", "What shape is it?", "Which number is it?"),
)  # fmt: skip
ABOUT_ITSELF: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "I am embedded:tiny-vision, a toy model that sees shapes, colours and digits.",
        ("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Which model are you?", "Introduce yourself."),
    ),
    (
        "I can name shapes and colours, count up to five, and read a digit.",
        ("What can you do?", "How can you help me?", "What can I ask you?", "Help", "What do you know?"),
    ),
    ("Hello! Show me a picture.", ("Hello", "Hi", "Hello!", "Hi!", "Hey", "Hi there", "Good morning", "Good morning!")),
    ("You are welcome!", ("Thanks", "Thank you", "Thank you!", "Thanks!")),
    ("Goodbye!", ("Bye", "Goodbye", "Bye!", "See you")),
)  # fmt: skip


def ask(rng: random.Random, drawing: Drawing) -> Exchange:
    """Returns a question about a drawing, and the answer."""
    found, weights = zip(*makers(drawing), strict=True)
    maker: Maker = rng.choices(found, weights)[0]
    question, answer = maker(rng, drawing)
    return _worded(rng, question), answer


def ask_of_two(rng: random.Random, first: Drawing, second: Drawing) -> Exchange:
    """Returns a question about two drawings, and the answer."""
    if rng.random() < 0.25:
        question = rng.choice(
            ("What is in the pictures?", "What do the pictures show?", "Describe both pictures.", "What do you see?")
        )  # fmt: skip
        return question, f"First: {_lower(describe(first))} Second: {_lower(describe(second))}"
    number, drawing = rng.choice((("first", first), ("second", second)))
    question, answer = ask(rng, drawing)
    forms = (
        f"In the {number} picture: {_lower(question)}",
        f"Look at the {number} picture. {question}",
    )
    if question in DESCRIBE:
        forms = (
            f"What is in the {number} picture?",
            f"What does the {number} picture show?",
            f"Describe the {number} picture.",
        )
    return rng.choice(forms), answer


def ask_nothing(rng: random.Random) -> Exchange:
    """Returns a question without a picture, and the answer."""
    answer, questions = WITHOUT if rng.random() < 0.4 else rng.choice(ABOUT_ITSELF)
    return rng.choice(questions), answer


def describe(drawing: Drawing) -> str:
    """Returns a sentence about all that is on the drawing."""
    if drawing.digit is not None:
        return f"The number {drawing.digit} in {drawing.colour}."
    if drawing.pattern is not None:
        return f"A pattern: {_pattern(drawing)}."
    if not drawing.figures:
        return f"Nothing but the colour {drawing.background}."
    groups = Counter((figure.shape, figure.colour) for figure in drawing.figures)
    parts = sorted(groups.items(), key=lambda item: (SHAPES.index(item[0][0]), item[0][1]))
    whole = " and ".join(_counted(count, *kind) for kind, count in parts)
    return f"{_capital(whole)} on {drawing.background}."


def makers(drawing: Drawing) -> list[tuple[Maker, int]]:
    """Returns the kinds of questions that suit a drawing, with their weights."""
    if drawing.digit is not None:
        return [(_describe, 2), (_read, 6), (_colour_of_digit, 2), (_background, 1)]
    if drawing.pattern is not None:
        return [(_describe, 2), (_which_pattern, 2), (_two_colours, 2)]
    if not drawing.figures:
        return [(_describe, 2), (_background, 2), (_count_all, 1)]
    always: list[tuple[Maker, int]] = [
        (_describe, 7), (_count_all, 4), (_count_shape, 3), (_has_shape, 2), (_has_colour, 2), (_background, 1), (_count_colour, 2),
    ]  # fmt: skip
    if len({figure.shape for figure in drawing.figures}) == 1:
        always.append((_which_shape, 3))
    if len({figure.colour for figure in drawing.figures}) == 1:
        always.append((_which_colour, 3))
    else:
        always.append((_colour_of_shape, 3))
    if len(drawing.figures) == 1:
        always += [(_where, 2), (_which_shape, 6)]
    return always


def _describe(rng: random.Random, drawing: Drawing) -> Exchange:
    return rng.choice(DESCRIBE), describe(drawing)


def _count_all(rng: random.Random, drawing: Drawing) -> Exchange:
    question = rng.choice(
        ("How many shapes are there?", "How many shapes do you see?", "Count the shapes.", "How many things are in the picture?",
         "How many objects are there?", "How many shapes are in the picture?")
    )  # fmt: skip
    return question, _number(len(drawing.figures))


def _count_shape(rng: random.Random, drawing: Drawing) -> Exchange:
    shape = _asked(rng, [figure.shape for figure in drawing.figures], SHAPES)
    count = sum(figure.shape == shape for figure in drawing.figures)
    plural = _plural(shape)
    question = rng.choice(
        (f"How many {plural} are there?", f"How many {plural} do you see?", f"Count the {plural}.", f"How many {plural} are in the picture?")
    )  # fmt: skip
    return question, _number(count)


def _count_colour(rng: random.Random, drawing: Drawing) -> Exchange:
    colour = _asked(rng, [figure.colour for figure in drawing.figures], tuple(COLOURS))
    count = sum(figure.colour == colour for figure in drawing.figures)
    return rng.choice(
        (f"How many {colour} shapes are there?", f"How many shapes are {colour}?", f"Count the {colour} shapes.")
    ), _number(count)  # fmt: skip


def _has_shape(rng: random.Random, drawing: Drawing) -> Exchange:
    shape = _asked(rng, [figure.shape for figure in drawing.figures], SHAPES, 0.5)
    found = any(figure.shape == shape for figure in drawing.figures)
    return rng.choice(
        (f"Is there a {shape}?", f"Do you see a {shape}?", f"Is there a {shape} in the picture?")
    ), _yes(found)


def _has_colour(rng: random.Random, drawing: Drawing) -> Exchange:
    colour = _asked(rng, [figure.colour for figure in drawing.figures], tuple(COLOURS), 0.5)
    found = any(figure.colour == colour for figure in drawing.figures)
    return rng.choice((f"Is there a {colour} shape?", f"Is any shape {colour}?")), _yes(found)


def _which_shape(rng: random.Random, drawing: Drawing) -> Exchange:
    shape = drawing.figures[0].shape
    question = rng.choice(
        (
            "What shape is it?",
            "Which shape is it?",
            "What shape do you see?",
            "Which shape is in the picture?",
            "Name the shape.",
        )
    )
    return question, _capital(shape) + "."


def _which_colour(rng: random.Random, drawing: Drawing) -> Exchange:
    shape, colour = drawing.figures[0].shape, drawing.figures[0].colour
    question = rng.choice(
        ("What colour is it?", "Which colour is it?", "What colour is the shape?", f"What colour is the {shape}?", f"Which colour has the {shape}?",
         "Name the colour.")
    )  # fmt: skip
    return question, _capital(colour) + "."


def _colour_of_shape(rng: random.Random, drawing: Drawing) -> Exchange:
    """Asks for the colour of one kind of shape; of both colours if a shape has two."""
    figure = rng.choice(drawing.figures)
    colours = sorted({f.colour for f in drawing.figures if f.shape == figure.shape})
    count = sum(f.shape == figure.shape for f in drawing.figures)
    subject = f"is the {figure.shape}" if count == 1 else f"are the {_plural(figure.shape)}"
    return f"What colour {subject}?", _capital(" and ".join(colours)) + "."


def _where(rng: random.Random, drawing: Drawing) -> Exchange:
    figure = drawing.figures[0]
    question = rng.choice((f"Where is the {figure.shape}?", "Where is it?", "Where is the shape?"))
    return question, _place(figure)


def _background(rng: random.Random, drawing: Drawing) -> Exchange:
    question = rng.choice(
        (
            "What colour is the background?",
            "Which colour is the background?",
            "What is the background colour?",
        )
    )
    return question, _capital(drawing.background) + "."


def _read(rng: random.Random, drawing: Drawing) -> Exchange:
    question = rng.choice(
        ("What does it say?", "Which number is it?", "What number is this?", "What number do you see?",
         "Which number is in the picture?", "Which digit is it?", "What digit is this?")
    )  # fmt: skip
    return question, f"{drawing.digit}."


def _colour_of_digit(rng: random.Random, drawing: Drawing) -> Exchange:
    assert drawing.colour is not None
    kind = rng.choice(("number", "digit"))
    return f"What colour is the {kind}?", _capital(drawing.colour) + "."


def _which_pattern(rng: random.Random, drawing: Drawing) -> Exchange:
    assert drawing.pattern is not None
    return rng.choice(
        ("What pattern is it?", "Which pattern is this?", "What pattern do you see?")
    ), _capital(drawing.pattern) + "."


def _two_colours(rng: random.Random, drawing: Drawing) -> Exchange:
    assert drawing.colour is not None
    colours = " and ".join(sorted((drawing.background, drawing.colour)))
    return rng.choice(
        ("Which colours are in the picture?", "What colours do you see?", "What colours are there?")
    ), _capital(colours) + "."


def _asked(
    rng: random.Random, present: Sequence[str], every: Sequence[str], chance: float = 0.8
) -> str:
    """Returns a word that is true of the drawing with this chance, else one that is not."""
    absent = [word for word in every if word not in present]
    return rng.choice(present) if rng.random() < chance else rng.choice(absent)


def _worded(rng: random.Random, question: str) -> str:
    """Varies spelling and case."""
    if rng.random() < 0.35:
        question = question.replace("colour", "color")
    if rng.random() < 0.12:
        question = question.lower()
    return question.rstrip("?.") if rng.random() < 0.06 else question


def _place(figure: Figure) -> str:
    across = "left" if figure.x < 0.4 else "right" if figure.x > 0.6 else ""
    along = "top" if figure.y < 0.4 else "bottom" if figure.y > 0.6 else ""
    if not across and not along:
        return "In the middle."
    return f"At the {' '.join(filter(None, (along, across)))}."


def _pattern(drawing: Drawing) -> str:
    assert drawing.colour is not None
    return f"{drawing.pattern} in {' and '.join(sorted((drawing.background, drawing.colour)))}"


def _counted(count: int, shape: str, colour: str) -> str:
    if count == 1:
        return f"{'an' if colour == 'orange' else 'a'} {colour} {shape}"
    return f"{NUMBERS[count]} {colour} {_plural(shape)}"


def _plural(shape: str) -> str:
    return f"{shape}es" if shape == "cross" else f"{shape}s"


def _number(count: int) -> str:
    return f"{count}."


def _yes(found: bool) -> str:
    return "Yes." if found else "No."


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
