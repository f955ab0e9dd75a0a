"""The corpus: which topics there are, how often, and how exchanges become documents. Seeded and endless."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from training.tiny import (
    about,
    arithmetic,
    knowledge,
    lists,
    plain,
    scenes,
    smalltalk,
    toolbox,
    unknown,
)
from training.tiny.document import (
    Document,
    Exchange,
    Message,
    chat_pieces,
    is_held_out,
    tool_call_text,
    tool_response_text,
)

Maker = Callable[[random.Random], Exchange]

TOPICS: tuple[tuple[Maker, float], ...] = (
    (arithmetic.arithmetic, 13.0), (arithmetic.word_problem, 2.0), (arithmetic.compare, 2.0), (arithmetic.count, 2.0),
    (arithmetic.number_word, 1.0), (knowledge.capital, 6.0), (knowledge.country, 3.5), (knowledge.colour_mix, 1.5),
    (knowledge.colour_of, 2.0), (knowledge.animal, 3.5), (knowledge.opposite, 3.0), (knowledge.translation, 3.0),
    (knowledge.day, 1.2), (knowledge.month, 2.0), (knowledge.planet, 1.5), (knowledge.shape, 1.2),
    (knowledge.size, 1.5), (knowledge.food, 2.0), (knowledge.trivia, 2.5), (about.itself, 6.0), (about.weft, 8.0),
    (smalltalk.talk, 6.0), (smalltalk.joke, 1.0), (smalltalk.poem, 1.2), (smalltalk.story, 1.5),
    (smalltalk.spelling, 2.5), (smalltalk.alphabet, 1.0), (smalltalk.repeat, 2.5), (unknown.unknown, 6.0),
    (unknown.nonsense, 1.0), (lists.listing, 2.5), (lists.yes_or_no, 2.5), (lists.as_json, 1.5),
)  # fmt: skip

SYSTEMS = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a helpful assistant.", "You are a helpful AI assistant.",
    "You are a friendly assistant.", "Answer briefly.", "Be concise.", "You are Weft's toy model.", "Be kind and honest.",
    "You are a helpful, harmless and honest assistant.", "Answer in one sentence.", "Today is a good day.",
)  # fmt: skip

NO_TOOL = "None of my tools can do that, and I am a toy model that does not know it."


def draw(rng: random.Random, maker: Maker, *, held_out: bool) -> Exchange:
    """An exchange from the wanted side of the split."""
    for _ in range(2000):
        exchange = maker(rng)
        if is_held_out(exchange.key) == held_out:
            return exchange
    raise ValueError(f"topic {maker.__name__} has no exchange with held_out={held_out}")


def any_topic(rng: random.Random) -> Exchange:
    """A training exchange of any topic."""
    makers, weights = zip(*TOPICS, strict=True)
    return draw(rng, rng.choices(makers, weights)[0], held_out=False)


def system_prompt(rng: random.Random) -> str | None:
    """No system prompt half of the time."""
    return None if rng.random() < 0.5 else rng.choice(SYSTEMS)


def _messages(exchanges: list[Exchange]) -> list[Message]:
    messages: list[Message] = []
    for exchange in exchanges:
        messages.append(Message("user", exchange.user))
        messages.append(Message("assistant", exchange.answer, exchange.thought))
    return messages


def told_by_system(rng: random.Random) -> Document:
    """The system prompt says who the user is; the user asks for it."""
    name = scenes.person(rng)
    while is_held_out(f"name:{name}"):
        name = scenes.person(rng)
    told = rng.choice(
        (
            "The user is called {0}.",
            "The user's name is {0}.",
            "You are a helpful assistant. The user is {0}.",
            "You talk to {0}.",
        )
    ).format(name)
    exchanges = [any_topic(rng)] if rng.random() < 0.3 else []
    exchanges.append(scenes.name_answer(rng, name, f"The system prompt says {name}."))
    return Document(
        "names", chat_pieces(_messages(exchanges), system=told, thinking=rng.random() < 0.2)
    )


def conversation(rng: random.Random) -> Document:
    """Several turns about different things, now and then with a scene among them."""
    exchanges: list[Exchange] = [
        any_topic(rng) for _ in range(rng.choices((1, 2, 3, 4, 5), (5, 2, 2, 2, 1))[0])
    ]
    if rng.random() < 0.3:
        follow = scenes.scene(rng, any_topic)
        while any(is_held_out(exchange.key) for exchange in follow):
            follow = scenes.scene(rng, any_topic)
        exchanges = exchanges[: rng.choice((0, 0, 1, 2))] + follow
    thinking = rng.random() < 0.22
    pieces = chat_pieces(_messages(exchanges), system=system_prompt(rng), thinking=thinking)
    return Document(exchanges[-1].topic, pieces)


def tool_document(rng: random.Random, *, held_out: bool = False) -> Document:
    """A tool list and a question: a call, an answer from the result, or words where no tool fits."""
    tools, call = _tools_and_call(rng, held_out=held_out)
    schemas = [tool.schema for tool in tools]
    system = system_prompt(rng)
    thinking = rng.random() < 0.2
    kind = rng.random()
    if kind < 0.12 and not held_out:
        exchange = any_topic(rng)
        while exchange.topic in (
            "arithmetic",
            "arithmetic words",
            "translation",
            "unknown",
            "repeating",
        ):
            exchange = any_topic(rng)
        return Document(
            "tools unused",
            chat_pieces(_messages([exchange]), system=system, tools=schemas, thinking=thinking),
        )
    if kind < 0.18 and not held_out:
        other = toolbox.make_call(rng, toolbox.make_tool(rng, toolbox.other_concept(rng, tools)))
        messages = [
            Message("user", other.question),
            Message("assistant", NO_TOOL, "No tool fits this."),
        ]
        return Document(
            "tools unused", chat_pieces(messages, system=system, tools=schemas, thinking=thinking)
        )
    called = Message(
        "assistant", tool_call_text(call.name, call.arguments), f"I need {call.name} for this."
    )
    messages = [Message("user", call.question), called]
    if rng.random() < 0.15 and not held_out:
        messages = _messages([any_topic(rng)]) + messages
    if kind < 0.68:
        return Document(
            "tool calls", chat_pieces(messages, system=system, tools=schemas, thinking=thinking)
        )
    messages += [
        Message("user", tool_response_text(call.response)),
        Message("assistant", call.answer, "The tool has answered."),
    ]
    if kind > 0.9 and not held_out:
        again = toolbox.make_call(rng, rng.choice(tools))
        while is_held_out(again.key):
            again = toolbox.make_call(rng, rng.choice(tools))
        text = tool_call_text(again.name, again.arguments)
        messages += [
            Message("user", again.question),
            Message("assistant", text, f"I need {again.name} for this."),
        ]
        return Document(
            "tool calls", chat_pieces(messages, system=system, tools=schemas, thinking=thinking)
        )
    return Document(
        "tool results", chat_pieces(messages, system=system, tools=schemas, thinking=thinking)
    )


def _tools_and_call(
    rng: random.Random, *, held_out: bool
) -> tuple[list[toolbox.Tool], toolbox.Call]:
    while True:  # some tools have few arguments and none of them on the wanted side
        tools = toolbox.draw_tools(rng)
        call = toolbox.make_call(rng, rng.choice(tools))
        if is_held_out(call.key) == held_out:
            return tools, call


def documents(seed: int, *, echoes: float = 0.0) -> Iterator[Document]:
    """Training documents without end, the same for the same seed; `echoes` is a share of copying practice on top."""
    rng = random.Random(seed)
    while True:
        if rng.random() < echoes:
            yield plain.echo(rng)
            continue
        kind = rng.random()
        if kind < 0.02:
            yield told_by_system(rng)
        elif kind < 0.76:
            yield conversation(rng)
        elif kind < 0.91:
            yield tool_document(rng)
        else:
            yield plain.plain(rng)
