"""Lists, yes-or-no questions and small JSON answers out of the same tables of facts."""

from __future__ import annotations

import json
import random

from training.tiny import facts
from training.tiny.arithmetic import expression_key
from training.tiny.document import Exchange
from training.tiny.knowledge import article
from training.tiny.wording import capital_first, vary

KINDS = {
    "fruits": ("apple", "banana", "cherry", "pear", "grape", "lemon"), "vegetables": ("carrot", "potato", "onion", "cabbage", "spinach"),
    "animals": ("dog", "cat", "cow", "horse", "lion", "bear", "fox"), "colours": ("red", "blue", "green", "yellow", "orange", "purple"),
    "colors": ("red", "blue", "green", "yellow", "orange", "purple"), "planets": facts.PLANETS, "countries": ("France", "Japan", "Brazil", "Kenya", "Canada", "India"),
    "cities": ("Paris", "Tokyo", "Rome", "Cairo", "London", "Lima"), "days": facts.DAYS, "months": facts.MONTHS, "shapes": ("square", "circle", "triangle", "hexagon", "octagon"),
    "drinks": ("water", "tea", "coffee", "juice", "milk"), "birds": ("duck", "owl", "swan", "goose", "crow"), "numbers": ("one", "two", "three", "four", "five"),
    "languages": ("English", "French", "German", "Spanish", "Italian"), "seasons": ("spring", "summer", "autumn", "winter"),
    "fish": ("salmon", "tuna", "cod", "trout", "shark"), "flowers": ("rose", "tulip", "daisy", "lily", "violet"), "trees": ("oak", "pine", "birch", "maple", "willow"),
    "names": ("Anna", "Ben", "Clara", "David", "Emma"), "sports": ("football", "tennis", "chess", "golf", "hockey"), "tools": ("hammer", "saw", "drill", "file", "wrench"),
}  # fmt: skip
COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "2": 2, "3": 3, "4": 4}
LIST_FORMS = (
    "Name {0} {1}.",
    "List {0} {1}.",
    "Give me {0} {1}.",
    "Can you name {0} {1}?",
    "Tell me {0} {1}.",
    "Write down {0} {1}.",
    "I need {0} {1}.",
    "Name {0} {1}, please.",
)


def listing(rng: random.Random) -> Exchange:
    """The first few things of a kind."""
    kind, things = rng.choice(list(KINDS.items()))
    said = rng.choice([word for word in COUNTS if word != "one"])
    some = list(things[: COUNTS[said]])
    question = rng.choice(LIST_FORMS).format(said, kind)
    if rng.random() < 0.15:
        some = list(things[:3])
        question = rng.choice(
            ("Name some {0}.", "List some {0}.", "Which {0} do you know?")
        ).format(kind)
    answer = capital_first(", ".join(some)) + "."
    return Exchange(
        "lists", vary(rng, question), answer, f"The user wants {kind}.", f"list:{question}", answer
    )


def yes_or_no(rng: random.Random) -> Exchange:
    """Whether a capital, a colour or a sum is right."""
    right = rng.random() < 0.5
    kind, key = rng.randrange(3), ""
    if kind == 0:
        country, city = rng.choice(list(facts.CAPITALS.items()))
        said = city if right else rng.choice(list(facts.CAPITALS.values()))
        right = said == city
        question = f"Is {said} the capital of {country}?"
        fact = f"the capital of {country} is {city}"
    elif kind == 1:
        thing, shade = rng.choice(list(facts.COLOUR_OF.items()))
        said = shade if right else rng.choice(("red", "blue", "green", "yellow", "white", "black"))
        right = said == shade
        question, fact = f"Is {thing} {said}?", f"{thing} is {shade}"
    else:
        left, more = rng.randrange(1, 13), rng.randrange(1, 13)
        value = left + more
        said = str(value if right else value + rng.choice((-1, 1, 2)))
        right = said == str(value)
        question, fact = (
            rng.choice((f"Is {left} + {more} = {said}?", f"Is {left} plus {more} {said}?")),
            f"{left} + {more} = {value}",
        )
        key = expression_key(left, "+", more)
    answer = f"{'Yes' if right else 'No'}, {fact.rstrip('.')}."
    return Exchange(
        "yes or no",
        vary(rng, question, slips=False),
        answer,
        f"I recall that {fact.rstrip('.')}.",
        key or f"yesno:{question}",
        answer,
    )


def as_json(rng: random.Random) -> Exchange:
    """A fact as a small JSON object."""
    kind = rng.randrange(4)
    if kind == 0:
        country, city = rng.choice(list(facts.CAPITALS.items()))
        value: dict[str, object] = {"country": country.removeprefix("the "), "capital": city}
        forms = (
            "Give me the capital of {0} as JSON.",
            "The capital of {0} in JSON, please.",
            "Answer in JSON: what is the capital of {0}?",
        )
        question = rng.choice(forms).format(country)
    elif kind == 1:
        name, age = rng.choice(facts.FIRST_NAMES), rng.randrange(1, 90)
        value = {"name": name, "age": age}
        question = rng.choice(
            (
                "Write JSON for {0}, who is {1}.",
                "{0} is {1} years old. Write that as JSON.",
                "Make JSON: name {0}, age {1}.",
            )
        ).format(name, age)
    elif kind == 2:
        value = {"name": "Ada", "age": 36}
        question = rng.choice(
            (
                "Give me a person as JSON.",
                "Write a JSON object with name and age.",
                "Make up a person in JSON.",
                "Write some JSON.",
                "Give me JSON with a name and an age.",
                "Generate a JSON object.",
            )
        )
    else:
        name = rng.choice(list(facts.ANIMALS))
        value = {"animal": name, "legs": facts.ANIMALS[name][2]}
        question = rng.choice(
            (
                f"How many legs does {article(name)} have? Answer in JSON.",
                f"Give me the legs of {article(name)} as JSON.",
            )
        )
    answer = json.dumps(value)
    return Exchange(
        "json",
        vary(rng, question, slips=False),
        answer,
        "The user wants JSON.",
        f"json:{question}",
        answer,
    )
