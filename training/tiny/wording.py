"""How people vary a question: politeness, case, missing marks, small typing slips."""

from __future__ import annotations

import random

LEADS = ("Please tell me: ", "Hey, ", "Quick question: ", "Tell me, ", "I wonder, ", "Hi! ", "OK, ", "Can you tell me: ",
         "Now, ", "So, ", "Question: ", "And ", "Well, ", "Hello! ")  # fmt: skip
TAILS = (
    " Please.",
    " Thanks!",
    " Thank you.",
    " Answer briefly.",
    " Do you know?",
    " Be short.",
    " :)",
    " I forgot.",
)


def lower_first(text: str) -> str:
    """Lower the first letter unless the word is `I` or an acronym."""
    if text[:2] in ("I ", "I'") or text[1:2].isupper():
        return text
    return text[:1].lower() + text[1:]


def capital_first(text: str) -> str:
    """Raise the first letter and leave the rest."""
    return text[:1].upper() + text[1:]


def typing_slip(rng: random.Random, text: str) -> str:
    """Swap or drop one letter inside a word."""
    spots = [
        i
        for i in range(1, len(text) - 2)
        if text[i].isalpha() and text[i + 1].isalpha() and text[i - 1].isalpha()
    ]
    if not spots:
        return text
    at = rng.choice(spots)
    if rng.random() < 0.5:
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return text[:at] + text[at + 1 :]


def vary(rng: random.Random, text: str, *, slips: bool = True) -> str:
    """One of the many ways to type the same question."""
    if rng.random() < 0.12:
        text = rng.choice(LEADS) + lower_first(text)
    if rng.random() < 0.08 and text[-1] in "?.!":
        text += rng.choice(TAILS)
    if rng.random() < 0.15:
        text = text.rstrip("?.!")
    if rng.random() < 0.2:
        text = text.lower()
    elif rng.random() < 0.02:
        text = text.upper()
    if slips and rng.random() < 0.03:
        text = typing_slip(rng, text)
    return text


def made_up_word(rng: random.Random, syllables: int) -> str:
    """A pronounceable word that means nothing, so that copying cannot be learnt by heart."""
    starts = "b c d f g h j k l m n p r s t v w z br dr fl gr kl pl st tr sh ch".split()
    middles = "a e i o u ai ea oo ou".split()
    ends = " n r s l m t k".split(" ")
    parts = (rng.choice(starts) + rng.choice(middles) + rng.choice(ends) for _ in range(syllables))
    return "".join(parts)
