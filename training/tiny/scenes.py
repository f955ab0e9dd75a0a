"""Turns that lean on earlier turns: names, `and of France?`, `plus 3?`, `what did I just ask?`."""

from __future__ import annotations

import random
from collections.abc import Callable

from training.tiny import arithmetic, facts, knowledge
from training.tiny.document import Exchange
from training.tiny.wording import capital_first, made_up_word, vary

Scene = list[Exchange]
Filler = Callable[[random.Random], Exchange]

GIVE_NAME = ("My name is {0}.", "I am {0}.", "Hi, I'm {0}.", "Hello, my name is {0}.", "You can call me {0}.", "Call me {0}.", "I'm {0}, nice to meet you.",
             "My name's {0}.", "Hi! My name is {0}. How are you?", "Please remember that my name is {0}.")  # fmt: skip
ASK_NAME = ("What is my name?", "What's my name?", "Do you know my name?", "Who am I?", "Do you remember my name?", "Tell me my name.", "What am I called?",
            "Can you say my name?", "What was my name again?")  # fmt: skip
GIVE_THING = (
    "I like {0}.",
    "My favourite word is {0}.",
    "My favorite thing is {0}.",
    "I love {0}.",
    "The secret word is {0}.",
    "Remember the word {0}.",
    "The password is {0}.",
)
ASK_THING = (
    "What do I like?",
    "What is my favourite word?",
    "What is my favorite thing?",
    "What do I love?",
    "What is the secret word?",
    "What was the word?",
    "What is the password?",
)
GOT_THING = (
    "You like {0}.",
    "Your favourite word is {0}.",
    "Your favorite thing is {0}.",
    "You love {0}.",
    "The secret word is {0}.",
    "The word was {0}.",
    "The password is {0}.",
)
ASK_LAST = ("What did I just ask?", "What was my last question?", "What did I say before?", "What did I ask you?", "Repeat my last question.", "What was my question?",
            "What did I just say?")  # fmt: skip


def person(rng: random.Random) -> str:
    """A known first name half of the time, an invented one otherwise, so that names are copied, not recalled."""
    if rng.random() < 0.5:
        return rng.choice(facts.FIRST_NAMES)
    return made_up_word(rng, 2).capitalize()


def name_scene(rng: random.Random, filler: Filler) -> Scene:
    """The user gives a name and asks for it later."""
    name = person(rng)
    given = rng.choice(GIVE_NAME)
    key = f"name:{name}"
    scene = [
        Exchange(
            "names",
            given.format(name),
            f"Nice to meet you, {name}!",
            f"The user is called {name}.",
            key,
            name,
        )
    ]
    scene += [filler(rng) for _ in range(rng.choice((0, 0, 1, 2)))]
    scene.append(name_answer(rng, name, f"The user said the name is {name}."))
    return scene


def name_answer(rng: random.Random, name: str, thought: str) -> Exchange:
    """The question for the user's name where it is known."""
    asked = vary(rng, rng.choice(ASK_NAME), slips=False)
    return Exchange("names", asked, f"Your name is {name}.", thought, f"name:{name}", name)


def no_name_scene(rng: random.Random, filler: Filler) -> Scene:
    """The user asks for a name that was never given."""
    scene = [filler(rng) for _ in range(rng.choice((0, 1)))]
    asked = rng.choice(ASK_NAME)
    answer = "You have not told me your name."
    scene.append(
        Exchange(
            "names",
            vary(rng, asked),
            answer,
            "The user never told me a name.",
            f"noname:{asked}",
            "not told",
        )
    )
    return scene


def thing_scene(rng: random.Random, filler: Filler) -> Scene:
    """The user gives a word and asks for it later."""
    index = rng.randrange(len(GIVE_THING))
    word = rng.choice(facts.WORDS) if rng.random() < 0.6 else made_up_word(rng, 2)
    key = f"thing:{index}:{word}"
    scene = [
        Exchange(
            "memory",
            GIVE_THING[index].format(word),
            f"All right, I will remember {word}.",
            f"The word is {word}.",
            key,
            word,
        )
    ]
    scene += [filler(rng) for _ in range(rng.choice((0, 1)))]
    scene.append(
        Exchange(
            "memory",
            vary(rng, ASK_THING[index], slips=False),
            GOT_THING[index].format(word),
            f"The user said {word}.",
            key,
            word,
        )
    )
    return scene


def last_question_scene(rng: random.Random, filler: Filler) -> Scene:
    """The user asks what the previous turn was."""
    first = filler(rng)
    while len(first.user) > 60:
        first = filler(rng)
    answer = f'You said: "{first.user}"'
    asked = rng.choice(ASK_LAST)
    return [
        first,
        Exchange(
            "memory",
            vary(rng, asked),
            answer,
            "I look at the last message.",
            f"last:{first.key}",
            first.user,
        ),
    ]


def _follow(exchange: Exchange, user: str, before: str) -> Exchange:
    key = f"follow:{before}:{exchange.key}"
    return Exchange("follow-ups", user, exchange.answer, exchange.thought, key, exchange.must)


def capital_scene(rng: random.Random, filler: Filler) -> Scene:
    """Capitals one after another, the later ones by country only."""
    first = knowledge.capital(rng)
    scene = [first]
    for _ in range(rng.choice((1, 1, 2))):
        country, city = rng.choice(list(facts.CAPITALS.items()))
        city = city.rstrip(".")
        form = rng.choice(
            (
                "And of {0}?",
                "And {0}?",
                "What about {0}?",
                "and {0}",
                "How about {0}?",
                "And the capital of {0}?",
                "Now {0}.",
                "and of {0}?",
            )
        )
        answer = f"The capital of {country} is {city}."
        scene.append(
            Exchange(
                "follow-ups",
                form.format(country),
                answer,
                f"Another capital: {country}. It is {city}.",
                f"follow:{form}:{country}",
                city,
            )
        )
    return scene


def sum_scene(rng: random.Random, filler: Filler) -> Scene:
    """A sum that goes on with the last result."""
    left, operator, right = rng.randrange(1, 30), rng.choice("+-"), rng.randrange(1, 20)
    if operator == "-" and left < right:
        left, right = right, left
    value = arithmetic.result(left, operator, right)
    user = rng.choice(arithmetic.FORMS[operator]).format(left, right)
    scene = [Exchange("arithmetic", user, f"{left} {operator} {right} = {value}.", arithmetic.working(left, operator, right),
                      arithmetic.expression_key(left, operator, right), f"= {value}.")]  # fmt: skip
    for _ in range(rng.choice((1, 1, 2))):
        more = rng.randrange(1, 11)
        operator = rng.choice("+-") if value >= more else "+"
        if operator == "+":
            form = rng.choice(
                (
                    "Plus {0}?",
                    "And plus {0}?",
                    "Add {0}.",
                    "plus {0}",
                    "Now add {0}.",
                    "And {0} more?",
                    "+ {0}?",
                    "Add {0} to that.",
                )
            )
        else:
            form = rng.choice(
                (
                    "Minus {0}?",
                    "And minus {0}?",
                    "Subtract {0}.",
                    "minus {0}",
                    "Now subtract {0}.",
                    "And {0} less?",
                    "- {0}?",
                    "Take away {0}.",
                )
            )
        total = arithmetic.result(value, operator, more)
        scene.append(Exchange("follow-ups", form.format(more), f"{value} {operator} {more} = {total}.", f"The last result is {value}. {value} {operator} {more} = {total}.",
                              arithmetic.expression_key(value, operator, more), f"= {total}."))  # fmt: skip
        value = total
    return scene


def opposite_scene(rng: random.Random, filler: Filler) -> Scene:
    """An opposite, then `and of …?`."""
    first, second = knowledge.opposite(rng), knowledge.opposite(rng)
    word = second.answer.removeprefix("The opposite of ").split(" is ")[0]
    form = rng.choice(("And of {0}?", "And {0}?", "What about {0}?", "How about {0}?"))
    return [first, _follow(second, form.format(word), form)]


def animal_scene(rng: random.Random, filler: Filler) -> Scene:
    """A sound or young, then the same of another animal."""
    first, second = rng.sample(list(facts.ANIMALS), 2)
    index = rng.randrange(2)
    scene = []
    for position, name in enumerate((first, second)):
        sound, young = facts.ANIMALS[name][:2]
        one = knowledge.article(name)
        if index == 0:
            must = "no sound" if sound == "nothing" else sound
            answer = f"{capital_first(one)} " + (
                "makes no sound." if sound == "nothing" else f"says {sound}."
            )
            question = rng.choice(knowledge.SOUND_QUESTIONS)
        else:
            must, answer = young, f"A baby {name} is called {knowledge.article(young)}."
            question = rng.choice(knowledge.YOUNG_QUESTIONS)
        if position == 1:
            question = rng.choice(("And {0}?", "What about {0}?", "How about {0}?", "and {0}"))
        topic = "follow-ups" if position else "animals"
        scene.append(
            Exchange(
                topic,
                question.format(one, name),
                answer,
                f"A question about {one}. {answer}",
                f"scene:{question}:{name}",
                must,
            )
        )
    return scene


SCENES: tuple[tuple[Callable[[random.Random, Filler], Scene], float], ...] = (
    (name_scene, 3.0), (no_name_scene, 0.5), (thing_scene, 1.5), (last_question_scene, 1.5), (capital_scene, 2.0),
    (sum_scene, 2.0), (opposite_scene, 0.7), (animal_scene, 0.8),
)  # fmt: skip


def scene(rng: random.Random, filler: Filler) -> Scene:
    """One of the scenes."""
    makers, weights = zip(*SCENES, strict=True)
    return rng.choices(makers, weights)[0](rng, filler)
