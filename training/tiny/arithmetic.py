"""Sums, differences, products and counting; the operands decide the split, so a held-out pair is never seen."""

from __future__ import annotations

import random

from training.tiny.document import Exchange
from training.tiny.wording import capital_first, vary

SMALL = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")  # fmt: skip
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")

FORMS = {
    "+": ("What is {0} + {1}?", "What is {0} plus {1}?", "{0} + {1} = ?", "{0}+{1}", "How much is {0} plus {1}?",
          "Add {0} and {1}.", "Compute {0} + {1}.", "What is the sum of {0} and {1}?", "Calculate {0} + {1}.",
          "What's {0}+{1}?", "{0} plus {1}", "Can you add {0} and {1}?", "{0} + {1}"),
    "-": ("What is {0} - {1}?", "What is {0} minus {1}?", "{0} - {1} = ?", "{0}-{1}", "How much is {0} minus {1}?",
          "Subtract {1} from {0}.", "Compute {0} - {1}.", "Calculate {0} - {1}.", "What's {0}-{1}?", "{0} minus {1}",
          "Take {1} away from {0}.", "{0} - {1}"),
    "*": ("What is {0} * {1}?", "What is {0} times {1}?", "{0} * {1} = ?", "{0}*{1}", "How much is {0} times {1}?",
          "Multiply {0} by {1}.", "Compute {0} * {1}.", "Calculate {0} x {1}.", "What's {0} x {1}?", "{0} times {1}",
          "What is the product of {0} and {1}?", "{0} * {1}"),
}  # fmt: skip
SPOKEN = {"+": "plus", "-": "minus", "*": "times"}


def in_words(number: int) -> str:
    """A number up to 199 in English words."""
    if number < 0:
        return f"minus {in_words(-number)}"
    if number < 20:
        return SMALL[number]
    if number < 100:
        return TENS[number // 10] + (f"-{SMALL[number % 10]}" if number % 10 else "")
    rest = number % 100
    return f"{SMALL[number // 100]} hundred" + (f" and {in_words(rest)}" if rest else "")


def result(left: int, operator: str, right: int) -> int:
    """The value of the expression."""
    if operator == "+":
        return left + right
    return left - right if operator == "-" else left * right


def operands(rng: random.Random) -> tuple[int, str, int]:
    """Small numbers most of the time, two digits otherwise; differences do not go below zero often."""
    draw = rng.random()
    if draw < 0.28:
        limit = 11 if rng.random() < 0.8 else 13
        return rng.randrange(limit), "*", rng.randrange(limit)
    operator = "+" if draw < 0.66 else "-"
    limit = rng.choices((11, 21, 100), (3, 5, 2))[0]
    left, right = rng.randrange(limit), rng.randrange(limit)
    if operator == "-" and left < right and rng.random() < 0.9:
        left, right = right, left
    return left, operator, right


def expression_key(left: int, operator: str, right: int) -> str:
    """One key for both orders of a sum or product: the mirror of a held-out pair is held out too."""
    low, high = (left, right) if operator == "-" else sorted((left, right))
    return f"arithmetic:{low}{operator}{high}"


def working(left: int, operator: str, right: int) -> str:
    """How the result comes about, for the thinking form."""
    value = result(left, operator, right)
    line = f"{left} {operator} {right} = {value}"
    if operator == "+" and left >= 10 and right >= 10:
        tens, ones = left // 10 * 10 + right // 10 * 10, left % 10 + right % 10
        return f"Tens: {left // 10 * 10} + {right // 10 * 10} = {tens}. Ones: {left % 10} + {right % 10} = {ones}. So {line}."
    verb = {"+": "add", "-": "subtract", "*": "multiply"}[operator]
    return f"I need to {verb}. {line}."


def arithmetic(rng: random.Random) -> Exchange:
    """One sum, difference or product, sometimes spelled in words."""
    left, operator, right = operands(rng)
    value = result(left, operator, right)
    form = rng.choice(FORMS[operator])
    key = expression_key(left, operator, right)
    thought = working(left, operator, right)
    if rng.random() < 0.12 and "*" not in form and max(left, right) < 21 and value >= 0:
        spoken = form.replace("+", SPOKEN["+"]).replace("-", SPOKEN["-"]).replace(" = ?", "?")
        spoken = (
            spoken.replace("{0}plus", "{0} plus")
            .replace("{0}minus", "{0} minus")
            .replace("plus{1}", "plus {1}")
        )
        user = capital_first(
            spoken.replace("minus{1}", "minus {1}").format(in_words(left), in_words(right))
        )
        answer = capital_first(
            f"{in_words(left)} {SPOKEN[operator]} {in_words(right)} is {in_words(value)}."
        )
        return Exchange(
            "arithmetic words",
            vary(rng, user, slips=False),
            answer,
            thought,
            key,
            f"is {in_words(value)}.",
        )
    user = form.format(left, right)
    return Exchange(
        "arithmetic",
        vary(rng, user, slips=False),
        f"{left} {operator} {right} = {value}.",
        thought,
        key,
        f"= {value}.",
    )


STORIES = (
    ("+", "I have {0} {2} and get {1} more. How many {2} do I have?", "You have {3} {2}."),
    ("+", "Tom has {0} {2} and Anna has {1} {2}. How many {2} do they have together?", "Together they have {3} {2}."),
    ("-", "I have {0} {2} and give away {1}. How many {2} are left?", "You have {3} {2} left."),
    ("-", "There are {0} {2} and I eat {1}. How many {2} remain?", "{3} {2} remain."),
    ("*", "There are {0} boxes with {1} {2} each. How many {2} are there?", "There are {3} {2}."),
)  # fmt: skip


def word_problem(rng: random.Random) -> Exchange:
    """A sum wrapped in a tiny story."""
    operator, question, reply = rng.choice(STORIES)
    left, right = rng.randrange(2, 13), rng.randrange(2, 13)
    if operator == "-" and left < right:
        left, right = right, left
    thing = rng.choice(
        ("apples", "books", "coins", "pears", "cookies", "cards", "balls", "eggs", "tokens", "pens")
    )
    value = result(left, operator, right)
    answer = f"{left} {operator} {right} = {value}. {reply.format(left, right, thing, value)}"
    key = expression_key(left, operator, right)
    return Exchange("word problems", vary(rng, question.format(left, right, thing), slips=False), answer,
                    working(left, operator, right), key, f"= {value}.")  # fmt: skip


def compare(rng: random.Random) -> Exchange:
    """Which of two numbers is larger, or whether one is even."""
    left, right = rng.sample(range(100), 2)
    if rng.random() < 0.4:
        kind = "even" if left % 2 == 0 else "odd"
        user = rng.choice(("Is {0} even or odd?", "Is {0} an even number?", "Is {0} odd?")).format(
            left
        )
        return Exchange("numbers", vary(rng, user, slips=False), f"{left} is {kind}.", f"The last digit of {left} is {left % 10}, so it is {kind}.",
                        f"numbers:{left}", f"is {kind}")  # fmt: skip
    big, small = max(left, right), min(left, right)
    if rng.random() < 0.7:
        user, answer = (
            rng.choice(
                (
                    "Which is bigger, {0} or {1}?",
                    "What is larger: {0} or {1}?",
                    "Which number is greater, {0} or {1}?",
                )
            ),
            f"{big} is bigger than {small}.",
        )
    else:
        user, answer = (
            rng.choice(("Which is smaller, {0} or {1}?", "Which number is less, {0} or {1}?")),
            f"{small} is smaller than {big}.",
        )
    return Exchange(
        "numbers",
        vary(rng, user.format(left, right), slips=False),
        answer,
        f"Compare {left} and {right}. {big} is bigger.",
        f"numbers:{left}:{right}",
        answer,
    )


def count(rng: random.Random) -> Exchange:
    """Counting up or down, or naming the neighbour of a number."""
    kind = rng.randrange(4)
    if kind == 0:
        start, length = (
            rng.choice((1, 1, 1, rng.randrange(1, 90))),
            rng.choices((rng.randrange(3, 12), 20, 30, 50, 100), (80, 6, 3, 2, 1))[0],
        )
        numbers = list(range(start, start + length))
        user = rng.choice(
            (
                "Count from {0} to {1}.",
                "Can you count from {0} to {1}?",
                "Please count from {0} up to {1}.",
            )
        )
        if start == 1 and rng.random() < 0.5:
            user = rng.choice(("Count to {1}.", "Can you count to {1}?", "count up to {1}"))
    elif kind == 1:
        start = rng.randrange(3, 12)
        numbers = list(range(start, 0, -1))
        user = rng.choice(
            ("Count down from {0}.", "Count backwards from {0}.", "Count down from {0} to 1.")
        )
    else:
        number = rng.randrange(1, 99)
        step, word = (1, "after") if kind == 2 else (-1, "before")
        user = rng.choice(
            (f"What number comes {word} {number}?", f"Which number is right {word} {number}?")
        )
        answer = f"The number {word} {number} is {number + step}."
        return Exchange(
            "counting",
            vary(rng, user, slips=False),
            answer,
            f"One step from {number}.",
            f"count:{word}:{number}",
            f"is {number + step}.",
        )
    listed = ", ".join(map(str, numbers)) + "."
    user = user.format(numbers[0], numbers[-1])
    return Exchange(
        "counting",
        vary(rng, user, slips=False),
        listed,
        f"I count from {numbers[0]} to {numbers[-1]}.",
        f"count:{numbers[0]}:{numbers[-1]}",
        listed,
    )


def number_word(rng: random.Random) -> Exchange:
    """A number in words, or words as a number."""
    number = rng.randrange(100)
    if rng.random() < 0.5:
        user = rng.choice(
            ("Write {0} in words.", "How do you write {0} in words?", "Spell the number {0}.")
        ).format(number)
        answer = f"{number} in words is {in_words(number)}."
    else:
        user = rng.choice(
            ("Write {0} as a number.", "What number is {0}?", "Write {0} in digits.")
        ).format(in_words(number))
        answer = f"{capital_first(in_words(number))} is {number}."
    return Exchange(
        "numbers",
        vary(rng, user, slips=False),
        answer,
        f"The number is {number}.",
        f"word:{user}",
        answer,
    )
