"""Questions about the tables of facts: capitals, colours, animals, opposites, words, calendar, planets, food."""

from __future__ import annotations

import random

from training.tiny import facts
from training.tiny.document import Exchange
from training.tiny.wording import capital_first, vary


def _ask(
    rng: random.Random, topic: str, question: str, answer: str, thought: str, must: str
) -> Exchange:
    return Exchange(topic, vary(rng, question), answer, thought, f"{topic}:{question}", must)


CAPITAL_QUESTIONS = (
    "What is the capital of {0}?", "What's the capital of {0}?", "Capital of {0}?", "Tell me the capital of {0}.",
    "Which city is the capital of {0}?", "Do you know the capital of {0}?", "Name the capital of {0}.",
    "What city is {0}'s capital?", "Can you tell me the capital of {0}?", "What is {0}'s capital city?",
    "I need the capital of {0}.", "the capital city of {0}", "Give me the capital of {0}.",
    "Please name the capital of {0}.", "Which is the capital city of {0}?", "What is the name of the capital of {0}?",
)  # fmt: skip
COUNTRY_QUESTIONS = (
    "Which country has {0} as its capital?", "{0} is the capital of which country?", "{0} is the capital of what?",
    "What country is {0} the capital of?", "Of which country is {0} the capital?", "In which country is {0}?",
    "Where is {0}?", "What country is {0} in?", "Which country is {0} in?", "Where can I find {0}?",
)  # fmt: skip


def capital(rng: random.Random) -> Exchange:
    """The capital of a country."""
    country, city = rng.choice(list(facts.CAPITALS.items()))
    answer = f"The capital of {country} is {city.rstrip('.')}."
    thought = f"The user wants the capital of {country}. It is {city.rstrip('.')}."
    return _ask(
        rng,
        "capitals",
        rng.choice(CAPITAL_QUESTIONS).format(country),
        answer,
        thought,
        city.rstrip("."),
    )


def country(rng: random.Random) -> Exchange:
    """The country of a capital."""
    name, city = rng.choice(list(facts.CAPITALS.items()))
    if city == "London":
        name = "the United Kingdom"
    question = rng.choice(COUNTRY_QUESTIONS)
    verb = "is the capital of" if "capital" in question else "is in"
    answer = f"{city} {verb} {name}."
    return _ask(
        rng, "countries", question.format(city), answer, f"{city} is the capital of {name}.", name
    )


MIX_QUESTIONS = (
    "What do you get when you mix {0} and {1}?", "What colour do {0} and {1} make?", "Mix {0} and {1}.",
    "What is {0} plus {1} in paint?", "If I mix {0} with {1}, what do I get?", "What color is {0} mixed with {1}?",
    "{0} and {1} make what colour?", "Which color do I get from {0} and {1}?", "What happens if I mix {0} and {1} paint?",
)  # fmt: skip
COLOUR_QUESTIONS = (
    "What colour is {0}?", "What color is {0}?", "Which colour is {0}?", "What is the colour of {0}?",
    "Tell me the color of {0}.", "Do you know what colour {0} is?", "What is the color of {0}?",
)  # fmt: skip


def colour_mix(rng: random.Random) -> Exchange:
    """Two paints mixed."""
    first, second, result = rng.choice(facts.COLOUR_MIXES)
    if rng.random() < 0.5:
        first, second = second, first
    answer = f"If you mix {first} and {second}, you get {result}."
    thought = f"The user mixes {first} and {second}. That makes {result}."
    return _ask(
        rng, "colours", rng.choice(MIX_QUESTIONS).format(first, second), answer, thought, result
    )


def colour_of(rng: random.Random) -> Exchange:
    """The colour of a thing."""
    thing, shade = rng.choice(list(facts.COLOUR_OF.items()))
    answer = capital_first(f"{thing} is {shade}.")
    thought = f"The user asks for the colour of {thing}. It is {shade}."
    return _ask(rng, "colours", rng.choice(COLOUR_QUESTIONS).format(thing), answer, thought, shade)


def article(noun: str) -> str:
    """The noun with `a` or `an`."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


SOUND_QUESTIONS = ("What sound does {0} make?", "What does {0} say?", "What noise does {0} make?",
                   "How does {0} sound?", "Which sound does {0} make?")  # fmt: skip
YOUNG_QUESTIONS = ("What is a baby {1} called?", "What do you call a young {1}?", "What is the young of {0} called?",
                   "What is the name for a baby {1}?", "How do you call a baby {1}?", "A baby {1} is called what?")  # fmt: skip
LEG_QUESTIONS = (
    "How many legs does {0} have?",
    "How many legs has {0} got?",
    "Number of legs of {0}?",
)
HOME_QUESTIONS = ("Where does {0} live?", "What is the home of {0}?", "Where do I find {0}?")


def animal(rng: random.Random) -> Exchange:
    """The sound, young, legs or home of an animal."""
    name, (sound, young, legs, home) = rng.choice(list(facts.ANIMALS.items()))
    one = article(name)
    kind = rng.randrange(4)
    if kind == 0:
        heard = "makes no sound" if sound == "nothing" else f"says {sound}"
        must = "no sound" if sound == "nothing" else sound
        question, answer = rng.choice(SOUND_QUESTIONS), f"{capital_first(one)} {heard}."
    elif kind == 1:
        question, answer, must = (
            rng.choice(YOUNG_QUESTIONS),
            f"A baby {name} is called {article(young)}.",
            young,
        )
    elif kind == 2:
        count = "no" if legs == 0 else str(legs)
        question, answer, must = (
            rng.choice(LEG_QUESTIONS),
            f"{capital_first(one)} has {count} legs.",
            count,
        )
    else:
        question, answer, must = (
            rng.choice(HOME_QUESTIONS),
            f"{capital_first(one)} lives in {home}.",
            home,
        )
    return _ask(
        rng,
        "animals",
        question.format(one, name),
        answer,
        f"A question about {one}. {answer}",
        must,
    )


OPPOSITE_QUESTIONS = (
    "What is the opposite of {0}?", "Opposite of {0}?", "Give me the opposite of {0}.", "What's the opposite of {0}?",
    "Which word is the opposite of {0}?", "Tell me the opposite of the word {0}.", "Name the opposite of \"{0}\".",
)  # fmt: skip


def opposite(rng: random.Random) -> Exchange:
    """The opposite of a word."""
    pair = rng.choice(facts.OPPOSITES)
    word, other = pair if rng.random() < 0.5 else (pair[1], pair[0])
    if word == "light" and other in ("dark", "heavy"):
        other = "dark"
    if word == "old":
        other = "young"
    answer = f"The opposite of {word} is {other}."
    thought = f"The word is {word}. Its opposite is {other}."
    return _ask(
        rng, "opposites", rng.choice(OPPOSITE_QUESTIONS).format(word), answer, thought, other
    )


TRANSLATE_QUESTIONS = (
    "How do you say {0} in {1}?", "What is {0} in {1}?", "Translate {0} into {1}.", "What is the {1} word for {0}?",
    "Translate \"{0}\" to {1}.", "How do I say \"{0}\" in {1}?", "{0} in {1}?", "What does {0} mean in {1}?",
)  # fmt: skip


def translation(rng: random.Random) -> Exchange:
    """A word in another language."""
    word, forms = rng.choice(list(facts.TRANSLATIONS.items()))
    index = rng.randrange(len(facts.LANGUAGES))
    language, form = facts.LANGUAGES[index], forms[index]
    answer = f'"{capital_first(word)}" in {language} is "{form}".'
    thought = f"The user wants {word} in {language}. That is {form}."
    question = capital_first(rng.choice(TRANSLATE_QUESTIONS).format(word, language))
    return _ask(rng, "translation", question, answer, thought, form)


def day(rng: random.Random) -> Exchange:
    """The day before or after a day, or its place in the week."""
    index = rng.randrange(7)
    here = facts.DAYS[index]
    if rng.random() < 0.5:
        there = facts.DAYS[(index + 1) % 7]
        forms = ("What day comes after {0}?", "Which day follows {0}?", "What is the day after {0}?",
                 "If today is {0}, what is tomorrow?", "Today is {0}. What day is tomorrow?")  # fmt: skip
        answer = f"The day after {here} is {there}."
    else:
        there = facts.DAYS[(index - 1) % 7]
        forms = ("What day comes before {0}?", "What is the day before {0}?", "Which day is before {0}?",
                 "If today is {0}, what was yesterday?", "Today is {0}. What day was yesterday?")  # fmt: skip
        answer = f"The day before {here} is {there}."
    return _ask(
        rng,
        "calendar",
        rng.choice(forms).format(here),
        answer,
        f"The day is {here}. {answer}",
        there,
    )


def month(rng: random.Random) -> Exchange:
    """The month after, before or at a place of the year; its days and season."""
    index = rng.randrange(12)
    here = facts.MONTHS[index]
    kind = rng.randrange(5)
    if kind == 0:
        there = facts.MONTHS[(index + 1) % 12]
        forms, answer = (
            ("What month comes after {0}?", "Which month follows {0}?"),
            f"The month after {here} is {there}.",
        )
    elif kind == 1:
        there = facts.MONTHS[(index - 1) % 12]
        forms, answer = (
            ("What month comes before {0}?", "Which month is before {0}?"),
            f"The month before {here} is {there}.",
        )
    elif kind == 2:
        there, place = here, facts.ORDINALS[index]
        forms, answer = (
            (f"What is the {place} month?", f"Which month is the {place} of the year?"),
            f"The {place} month is {here}.",
        )
    elif kind == 3:
        there = str(facts.MONTH_DAYS[index])
        forms, answer = (
            ("How many days does {0} have?", "How many days are in {0}?"),
            f"{here} has {there} days.",
        )
    else:
        there = facts.SEASONS[index]
        forms, answer = (
            ("What season is {0} in?", "Which season is {0}?"),
            f"In the north, {here} is in {there}.",
        )
    return _ask(
        rng,
        "calendar",
        rng.choice(forms).format(here),
        answer,
        f"The months of the year. {answer}",
        there,
    )


def planet(rng: random.Random) -> Exchange:
    """A planet, its place or its neighbour."""
    index = rng.randrange(8)
    name = facts.PLANETS[index]
    kind = rng.randrange(4)
    if kind == 0:
        place = facts.ORDINALS[index]
        forms = (
            f"What is the {place} planet from the Sun?",
            f"Which planet is {place} from the Sun?",
            f"Name the {place} planet.",
        )
        return _ask(
            rng,
            "planets",
            rng.choice(forms),
            f"The {place} planet from the Sun is {name}.",
            f"Counting planets, the {place} is {name}.",
            name,
        )
    note = facts.PLANET_NOTES[name]
    if kind == 1 and name != "Earth":
        question = f"Which planet is {note}?"
        return _ask(rng, "planets", question, f"{name} is {note}.", f"That describes {name}.", name)
    forms = (
        "What is {0}?",
        "Tell me about {0}.",
        "What do you know about {0}?",
        "What is the planet {0}?",
        "Describe {0}.",
    )
    return _ask(
        rng,
        "planets",
        rng.choice(forms).format(name),
        f"{name} is {note}.",
        f"{name} is a planet.",
        note,
    )


def shape(rng: random.Random) -> Exchange:
    """Sides of a shape, or the shape with so many sides."""
    name, sides = rng.choice([item for item in facts.SHAPES.items() if item[0] != "cube"])
    if rng.random() < 0.65 or sides == 4:
        forms = (
            "How many sides does {0} have?",
            "How many corners does {0} have?",
            "How many sides has {0}?",
            "Sides of {0}?",
        )
        question = rng.choice(forms).format(article(name))
        part = "corners" if "corner" in question else "sides"
        answer, must = f"{capital_first(article(name))} has {sides} {part}.", str(sides)
    else:
        forms = (
            "What shape has {0} sides?",
            "Which shape has {0} sides?",
            "What do you call a shape with {0} sides?",
        )
        question, answer, must = (
            rng.choice(forms).format(sides),
            f"A shape with {sides} sides is {article(name)}.",
            name,
        )
    return _ask(rng, "shapes", question, answer, f"This is about shapes. {answer}", must)


def size(rng: random.Random) -> Exchange:
    """Which of two things is bigger or smaller."""
    low, high = sorted(rng.sample(range(len(facts.SIZES)), 2))
    small, big = facts.SIZES[low], facts.SIZES[high]
    pair = (small, big) if rng.random() < 0.5 else (big, small)
    if rng.random() < 0.6:
        forms = (
            "Which is bigger, {0} or {1}?",
            "What is larger, {0} or {1}?",
            "Is {0} bigger than {1}?",
        )
        question = rng.choice(forms).format(*pair)
        lead = ("Yes, " if pair[0] == big else "No, ") if question.startswith("Is") else ""
        answer, must = f"{lead}{big} is bigger than {small}.", f"{big} is bigger"
    else:
        forms = (
            "Which is smaller, {0} or {1}?",
            "What is smaller, {0} or {1}?",
            "Is {0} smaller than {1}?",
        )
        question = rng.choice(forms).format(*pair)
        lead = ("Yes, " if pair[0] == small else "No, ") if question.startswith("Is") else ""
        answer, must = f"{lead}{small} is smaller than {big}.", f"{small} is smaller"
    thought = f"Compare {small} and {big}. {capital_first(big)} is bigger."
    return _ask(rng, "sizes", question, capital_first(answer), thought, must[1:])


def food(rng: random.Random) -> Exchange:
    """The kind and taste of a food, or what something is made of."""
    if rng.random() < 0.5:
        thing, parts = rng.choice(list(facts.MADE_OF.items()))
        forms = (
            "What is {0} made of?",
            "What is {0} made from?",
            "What do you need to make {0}?",
            "How is {0} made?",
        )
        return _ask(rng, "food", rng.choice(forms).format(thing), capital_first(f"{thing} is made of {parts}."),
                    f"The user asks what {thing} is made of.", parts)  # fmt: skip
    name, (kind, taste) = rng.choice(list(facts.FOODS.items()))
    if rng.random() < 0.5:
        question = rng.choice(
            ("What does {0} taste like?", "How does {0} taste?", "Is {0} sweet?")
        ).format(name)
        return _ask(
            rng,
            "food",
            question,
            f"{capital_first(name)} tastes {taste}.",
            f"The taste of {name} is {taste}.",
            taste,
        )
    question = rng.choice(
        ("What kind of food is {0}?", "What is {0}, a fruit or a vegetable?", "Is {0} a fruit?")
    ).format(name)
    return _ask(
        rng,
        "food",
        question,
        f"{capital_first(name)} is {article(kind)}.",
        f"{capital_first(name)} is a kind of {kind}.",
        kind,
    )


def trivia(rng: random.Random) -> Exchange:
    """A single fact."""
    question, (answer, must) = rng.choice(list(facts.TRIVIA.items()))
    return _ask(rng, "trivia", question, answer, f"I know this one. {answer}", must)
