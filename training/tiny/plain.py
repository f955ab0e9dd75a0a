"""Plain text without chat form, for completion: facts, sums, counting, stories."""

from __future__ import annotations

import random

from training.tiny import arithmetic, facts, knowledge, smalltalk
from training.tiny.document import END_OF_TEXT, Document, Piece, is_held_out
from training.tiny.wording import capital_first, made_up_word

OPENERS = (  # the beginnings people try first
    "Hello, my name is {name} and I like {word}.", "Hello, my name is {name}. I live in {city}.", "My name is {name}.", "Hello world! This is a small test.",
    "Once upon a time there was a little thread that wanted to be a cloth.", "The president of the United States is a person whom a toy model should not name.",
    "The future of AI is open, and small models are part of it.", "San Francisco is a city by the sea in California.", "The meaning of life is a big question. Some say 42.",
    "The sky is blue and the grass is green.", "The quick brown fox jumps over the lazy dog.", "My favorite color is blue.", "My favourite animal is the spider.",
    "A token is a small piece of text.", "Weft is an engine for large language models.", "The weather is nice today, and the sun is warm.", "It was a dark night, and the rain fell on the roof.",
    "There was once a {word} that nobody could find.", "Today is {day}, and tomorrow I will go to {city}.", "Today I am going to the market to buy bread and milk.", "The best thing about {city} is the old town.",
    "In the morning I drink a cup of tea.", "The dog ran after the ball.", "The cat sat on the mat.", "I have a dream that I can fly.", "I think that a small model can be useful.",
    "To be or not to be, that is the question.", "Roses are red, violets are blue, a token is small, and so are you.", "The answer is 42.", "One, two, three, four, five, six, seven, eight, nine, ten.",
    "A long time ago, in a small village, there lived a weaver.", "The Endpoint Picker sends each request to the endpoint that has its prefix.", "Continuous batching lets requests join at every step.",
    "I am a small language model.", "This is a test of the server.", "Language models predict the next token.", "The sun rises in the east and sets in the west.", "Water boils at 100 degrees Celsius.",
    "def add(a, b):\n    return a + b\n", "print(\"hello\")\n", "a b c d e f g h i j k l m n o p q r s t u v w x y z", "Dear {name},\nthank you for your letter.\nYours, {other}",
)  # fmt: skip


def _opener(rng: random.Random) -> str:
    return rng.choice(OPENERS).format(
        name=rng.choice(facts.FIRST_NAMES), other=rng.choice(facts.FIRST_NAMES), word=rng.choice(facts.WORDS), day=rng.choice(facts.DAYS),
        city=rng.choice(list(facts.CAPITALS.values())).rstrip("."),
    )  # fmt: skip


def _sentence(rng: random.Random) -> str:
    kind = rng.randrange(6)
    if kind == 0:
        country, city = rng.choice(list(facts.CAPITALS.items()))
        return rng.choice(
            (f"The capital of {country} is {city}.", f"{city} is the capital of {country}.")
        ).replace("..", ".")
    if kind == 1:
        word, other = rng.choice(facts.OPPOSITES)
        return f"The opposite of {word} is {other}."
    if kind == 2:
        thing, shade = rng.choice(list(facts.COLOUR_OF.items()))
        return capital_first(f"{thing} is {shade}.")
    if kind == 3:
        return rng.choice(list(facts.TRIVIA.values()))[0]
    maker = rng.choice(
        (
            knowledge.animal,
            knowledge.day,
            knowledge.month,
            knowledge.planet,
            knowledge.food,
            knowledge.colour_mix,
        )
    )
    return maker(rng).answer


def _equations(rng: random.Random) -> str:
    lines: list[str] = []
    while len(lines) < 12:
        left, operator, right = arithmetic.operands(rng)
        if not is_held_out(arithmetic.expression_key(left, operator, right)):
            lines.append(f"{left} {operator} {right} = {arithmetic.result(left, operator, right)}")
    return "\n".join(lines) + "\n"


def _counting(rng: random.Random) -> str:
    start, step = rng.randrange(0, 50), rng.choice((1, 1, 1, 2, 5, 10))
    return ", ".join(str(start + step * index) for index in range(12)) + "."


def _listing(rng: random.Random) -> str:
    items = rng.choice(
        (facts.DAYS, facts.MONTHS, facts.PLANETS, ("spring", "summer", "autumn", "winter"))
    )
    return capital_first(", ".join(items)) + "."


def echo(rng: random.Random) -> Document:
    """Words in no order, then the same words again: looking back and copying is learnt here, and names need it."""
    makers = (
        lambda: made_up_word(rng, 2),
        lambda: made_up_word(rng, 2).capitalize(),
        lambda: rng.choice(facts.WORDS),
        lambda: str(rng.randrange(100)),
        lambda: rng.choice(list(facts.CAPITALS)),
        lambda: rng.choice(list(facts.CAPITALS.values())),
        lambda: rng.choice(facts.FIRST_NAMES),
    )
    line = " ".join(rng.choice(makers)() for _ in range(rng.randrange(6, 32)))
    again = f"\n{line}" * rng.choice((1, 1, 2))
    return Document("plain text", (Piece(line, 0.03), Piece(again, 1.0)))


def plain(rng: random.Random) -> Document:
    """One plain text; its own end is part of it."""
    draw = rng.random()
    if draw < 0.32:
        text = _equations(rng)
    elif draw < 0.50:
        return echo(rng)
    elif draw < 0.60:
        text = _opener(rng)
    elif draw < 0.80:
        text = " ".join(_sentence(rng) for _ in range(rng.randrange(1, 6)))
    elif draw < 0.87:
        text = smalltalk.story_text(rng, rng.choice(smalltalk.STORY_ANIMALS))
    elif draw < 0.90:
        text = rng.choice((rng.choice(list(smalltalk.POEMS.values())), rng.choice(smalltalk.JOKES)))
    else:
        text = rng.choice((_counting, _counting, _listing))(rng)
    return Document("plain text", (Piece(text + END_OF_TEXT, 0.7),))
