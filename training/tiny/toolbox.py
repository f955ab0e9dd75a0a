"""Tool lists, the calls that answer them, and what is said once the result is there.

Function and parameter names, descriptions and the order of schema keys all vary, and one tool in five is invented, so
that names and arguments must be copied from the prompt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from training.tiny import facts
from training.tiny.wording import made_up_word

Arguments = dict[str, object]


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter: the names it may have, its JSON type and how a value is drawn."""

    names: tuple[str, ...]
    kind: str
    draw: Callable[[random.Random], object]
    note: str


@dataclass(frozen=True, slots=True)
class Concept:
    """A tool in the abstract: names, descriptions, slots, the questions that need it and the result."""

    names: tuple[str, ...]
    notes: tuple[str, ...]
    slots: tuple[Slot, ...]
    questions: tuple[str, ...]
    results: tuple[tuple[str, str], ...]  # (result with {values}, answer with {values})


@dataclass(frozen=True, slots=True)
class Tool:
    """A concept with its names chosen: the schema, and the parameter names in slot order."""

    concept: Concept
    name: str
    parameters: tuple[str, ...]
    schema: Arguments


def _city(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return made_up_word(rng, 2).capitalize()
    return rng.choice(list(facts.CAPITALS.values())).rstrip(".")


def _name(rng: random.Random) -> str:
    return (
        rng.choice(facts.FIRST_NAMES) if rng.random() < 0.6 else made_up_word(rng, 2).capitalize()
    )


def _number(rng: random.Random) -> int:
    return rng.randrange(1, 100)


def _word(rng: random.Random) -> str:
    return rng.choice(facts.WORDS) if rng.random() < 0.7 else made_up_word(rng, 2)


def _words(rng: random.Random) -> str:
    return " ".join(_word(rng) for _ in range(rng.randrange(1, 4)))


def _one_of(*values: str) -> Callable[[random.Random], object]:
    return lambda rng: rng.choice(values)


CITY = Slot(("city", "location", "place", "town"), "string", _city, "The city")
PERSON = Slot(("to", "name", "recipient", "person"), "string", _name, "Who it is for")
TEXT = Slot(("text", "message", "body", "content"), "string", _words, "The words")
QUERY = Slot(("query", "q", "search", "topic"), "string", _words, "What to look for")
WORD = Slot(("word", "term", "text"), "string", _word, "The word")
LANGUAGE = Slot(
    ("language", "target", "to", "lang"),
    "string",
    _one_of("French", "German", "Spanish", "Italian", "Japanese", "Polish", "Dutch"),
    "The language",
)
COUNT = Slot(("count", "n", "number", "amount"), "integer", _number, "How many")
MINUTES = Slot(("minutes", "duration", "length", "time"), "integer", _number, "Minutes")
ROOM = Slot(
    ("room", "place", "location", "area"),
    "string",
    _one_of("kitchen", "bedroom", "garden", "office", "bathroom", "hall", "living room"),
    "The room",
)
FIRST = Slot(("a", "x", "first", "left"), "integer", _number, "The first number")
SECOND = Slot(("b", "y", "second", "right"), "integer", _number, "The second number")
CODE = Slot(
    ("currency", "to", "code", "unit"),
    "string",
    _one_of("EUR", "USD", "GBP", "JPY", "CHF", "SEK"),
    "The currency",
)
DAY = Slot(("day", "date", "when"), "string", _one_of(*facts.DAYS, "today", "tomorrow"), "The day")
SYMBOL = Slot(
    ("symbol", "ticker", "stock", "company"),
    "string",
    _one_of("ACME", "GLOW", "TREE", "ZED", "ORBIT", "NOVA"),
    "The stock",
)
PATH = Slot(
    ("path", "file", "filename", "file_path"),
    "string",
    _one_of("notes.txt", "todo.md", "main.py", "data.csv", "readme.md", "config.json"),
    "The file",
)
IDENT = Slot(("id", "user_id", "order_id", "number"), "integer", _number, "The id")
DISH = Slot(
    ("dish", "food", "meal", "query"),
    "string",
    _one_of("soup", "pizza", "pancakes", "salad", "pasta", "bread", "cake", "rice"),
    "The dish",
)
STATE = Slot(("state", "mode", "value", "status"), "string", _one_of("on", "off"), "on or off")

CONCEPTS: tuple[Concept, ...] = (
    Concept(("get_weather", "weather", "get_current_weather", "weather_now", "fetch_weather"), ("Get the weather in a city", "Current weather for a place", "Tells the weather"), (CITY,),
            ("What is the weather in {0}?", "How is the weather in {0}?", "What's the weather like in {0}?", "Is it raining in {0}?", "Is it cold in {0}?", "Weather in {0}?", "Tell me the weather in {0}.", "What is the weather in {0} today?", "How warm is it in {0}?"),
            (('{{"temperature": {n}, "condition": "{w}"}}', "In {0} it is {n} degrees and {w}."), ("{w}, {n} degrees", "In {0} it is {n} degrees and {w}."))),
    Concept(("get_time", "current_time", "get_local_time", "clock", "time_in"), ("Get the time in a city", "Local time of a place", "What time it is"), (CITY,),
            ("What time is it in {0}?", "Tell me the time in {0}.", "What is the local time in {0}?", "Time in {0}?", "How late is it in {0}?"),
            (('{{"time": "{n}:{m}"}}', "It is {n}:{m} in {0}."), ("{n}:{m}", "It is {n}:{m} in {0}."))),
    Concept(("add", "sum", "add_numbers", "plus"), ("Add two numbers", "The sum of two numbers"), (FIRST, SECOND),
            ("What is {0} plus {1}?", "Add {0} and {1}.", "What is {0} + {1}?", "Compute {0} + {1}.", "Use the tool to add {0} and {1}."), (("{n}", "The result is {n}."), ('{{"result": {n}}}', "The result is {n}."))),
    Concept(("multiply", "times", "product", "mul"), ("Multiply two numbers", "The product of two numbers"), (FIRST, SECOND),
            ("What is {0} times {1}?", "Multiply {0} by {1}.", "What is {0} * {1}?", "Compute {0} times {1}."), (("{n}", "The result is {n}."), ('{{"result": {n}}}', "The result is {n}."))),
    Concept(("search", "web_search", "search_web", "lookup", "find"), ("Search the web", "Look something up", "Find pages"), (QUERY,),
            ("Search for {0}.", "Look up {0}.", "Find information about {0}.", "Search the web for {0}.", "Can you search for {0}?", "Google {0}."), (('{{"results": {n}}}', "I found {n} results for {0}."), ("{n} results", "I found {n} results for {0}."))),
    Concept(("translate", "translate_text", "to_language", "translation"), ("Translate text", "Translate words into a language"), (TEXT, LANGUAGE),
            ("Translate {0} into {1}.", "Translate \"{0}\" to {1}.", "How do you say {0} in {1}?", "Say \"{0}\" in {1}."), (('{{"translation": "{x}"}}', "{0} in {1} is {x}."), ("{x}", "{0} in {1} is {x}."))),
    Concept(("send_message", "send_email", "message", "send_text", "mail"), ("Send a message to a person", "Send an email", "Sends a text"), (PERSON, TEXT),
            ("Send a message to {0}: {1}", "Tell {0}: {1}", "Write to {0}: {1}", "Send {0} the message \"{1}\".", "Email {0} the text \"{1}\"."), (('{{"status": "sent"}}', "Your message to {0} was sent."), ("ok", "Your message to {0} was sent."))),
    Concept(("set_timer", "start_timer", "timer", "create_timer"), ("Start a timer", "Set a timer for some minutes"), (MINUTES,),
            ("Set a timer for {0} minutes.", "Start a {0} minute timer.", "Timer for {0} minutes, please.", "Wake me in {0} minutes."), (('{{"status": "started"}}', "The timer for {0} minutes is running."), ("ok", "The timer for {0} minutes is running."))),
    Concept(("set_light", "switch_light", "light", "control_light"), ("Turn a light on or off", "Control the lights"), (ROOM, STATE),
            ("Turn the light in the {0} {1}.", "Switch the {0} light {1}.", "Turn {1} the {0} light.", "Lights {1} in the {0}."), (('{{"status": "done"}}', "The light in the {0} is {1}."), ("ok", "The light in the {0} is {1}."))),
    Concept(("roll_dice", "dice", "roll", "throw_dice"), ("Roll dice", "Roll some dice"), (COUNT,),
            ("Roll {0} dice.", "Throw {0} dice.", "Please roll {0} dice for me.", "Can you roll {0} dice?"), (('{{"total": {n}}}', "The dice show {n}."), ("{n}", "The dice show {n}."))),
    Concept(("define", "define_word", "dictionary", "get_definition"), ("Look a word up in the dictionary", "Define a word"), (WORD,),
            ("Define {0}.", "What does {0} mean?", "Look up the word {0} in the dictionary.", "What is the definition of {0}?"), (('{{"definition": "a kind of {x}"}}', "{0} means a kind of {x}."), ("a kind of {x}", "{0} means a kind of {x}."))),
    Concept(("play_music", "play_song", "play", "music"), ("Play music", "Play a song"), (Slot(("song", "title", "artist", "query"), "string", _words, "What to play"),),
            ("Play {0}.", "Play the song {0}.", "Play some {0}.", "I want to hear {0}.", "Put on {0}."), (('{{"status": "playing"}}', "Now playing {0}."), ("ok", "Now playing {0}."))),
    Concept(("get_stock_price", "stock_price", "quote", "get_price"), ("Get the price of a stock", "Stock prices"), (SYMBOL,),
            ("What is the price of {0}?", "What is the stock price of {0}?", "How much is {0} stock?", "Get the price of {0}."), (('{{"price": {n}}}', "The price of {0} is {n}."), ("{n}", "The price of {0} is {n}."))),
    Concept(("convert_currency", "convert", "exchange", "currency_convert"), ("Convert money", "Convert an amount of dollars"), (COUNT, CODE),
            ("Convert {0} dollars to {1}.", "How much is {0} dollars in {1}?", "Change {0} dollars into {1}.", "What is {0} dollars in {1}?"), (('{{"value": {n}}}', "{0} dollars are {n} {1}."), ("{n}", "{0} dollars are {n} {1}."))),
    Concept(("add_event", "create_event", "calendar_add", "schedule_meeting"), ("Add an event to the calendar", "Create a calendar entry"), (Slot(("title", "event", "name", "subject"), "string", _words, "The title"), DAY),
            ("Add {0} to my calendar for {1}.", "Schedule {0} on {1}.", "Create an event called {0} for {1}.", "Put {0} in the calendar for {1}."), (('{{"status": "created"}}', "I added {0} for {1}."), ("ok", "I added {0} for {1}."))),
    Concept(("read_file", "open_file", "cat_file", "get_file"), ("Read a file", "Return the text of a file"), (PATH,),
            ("Read the file {0}.", "Open {0}.", "What is in {0}?", "Show me {0}.", "Read {0} for me."), (('{{"text": "{x}"}}', "The file {0} says: {x}"), ("{x}", "The file {0} says: {x}"))),
    Concept(("get_user", "find_user", "lookup_user", "get_order"), ("Find a record by its id", "Get a user by id"), (IDENT,),
            ("Who is user {0}?", "Look up number {0}.", "Find the record with id {0}.", "Get user {0}."), (('{{"name": "{p}"}}', "Number {0} is {p}."), ("{p}", "Number {0} is {p}."))),
    Concept(("find_recipe", "get_recipe", "recipe", "search_recipes"), ("Find a recipe", "Recipes for a dish"), (DISH,),
            ("How do I cook {0}?", "Find a recipe for {0}.", "I want to make {0}.", "Give me a recipe for {0}.", "Recipe for {0}?"), (('{{"minutes": {n}}}', "I found a recipe for {0}. It takes {n} minutes."), ("{n} minutes", "I found a recipe for {0}. It takes {n} minutes."))),
    Concept(("get_distance", "distance", "route", "how_far"), ("Distance between two cities", "How far it is from one place to another"), (Slot(("start", "origin", "from", "a"), "string", _city, "Start"), Slot(("end", "destination", "to", "b"), "string", _city, "End")),
            ("How far is it from {0} to {1}?", "What is the distance between {0} and {1}?", "Distance from {0} to {1}?", "How many kilometres from {0} to {1}?"), (('{{"km": {n}}}', "It is {n} km from {0} to {1}."), ("{n} km", "It is {n} km from {0} to {1}."))),
    Concept(("get_news", "news", "headlines", "latest_news"), ("Get the news", "Latest news on a topic"), (Slot(("topic", "subject", "category", "about"), "string", _word, "The topic"),),
            ("What is the news about {0}?", "Any news on {0}?", "Show me the news about {0}.", "Latest news on {0}."), (('{{"headline": "{x}"}}', "The news about {0}: {x}"), ("{x}", "The news about {0}: {x}"))),
)  # fmt: skip


def invented(rng: random.Random) -> Concept:
    """A tool nobody has seen: only the prompt says its name and parameters."""
    verb, noun = (
        rng.choice(("get", "set", "find", "run", "make", "check", "start", "list")),
        made_up_word(rng, 2),
    )
    name = f"{verb}_{noun}"
    slots, words = [], []
    for index in range(rng.choice((1, 1, 2))):
        parameter = (
            made_up_word(rng, rng.choice((1, 2)))
            if rng.random() < 0.5
            else rng.choice(
                ("level", "size", "key", "label", "color", "value", "speed", "target", "kind")
            )
        )
        parameter = parameter if not slots or slots[0].names[0] != parameter else parameter + "2"
        kind, draw = rng.choice((("string", _word), ("integer", _number)))
        slots.append(Slot((parameter,), kind, draw, f"The {parameter}"))
        words.append(f"{parameter} {{{index}}}")
    told = " and ".join(words)
    questions = (
        f"Call {name} with {told}.",
        f"Please {verb} the {noun} with {told}.",
        f"Use {name}: {told}.",
        f"{verb.capitalize()} {noun}, {told}.",
    )
    return Concept(
        (name,),
        (f"{verb.capitalize()} the {noun}",),
        tuple(slots),
        questions,
        (('{{"result": "{x}"}}', "The result is {x}."), ("{x}", "The result is {x}.")),
    )


# An optional parameter that no question speaks of: the call leaves it out.
EXTRA: tuple[Arguments, ...] = (
    {"type": "string", "enum": ["celsius", "fahrenheit"]},
    {"type": "string", "enum": ["short", "long"]},
    {"type": "integer"},
    {"type": "boolean", "description": "Optional"},
)


def make_tool(rng: random.Random, concept: Concept) -> Tool:
    """Choose the names of a concept and write its schema."""
    name = rng.choice(concept.names)
    parameters: list[str] = []
    for slot in concept.slots:
        free = [candidate for candidate in slot.names if candidate not in parameters]
        parameters.append(rng.choice(free))
    described = rng.random() < 0.5
    properties: Arguments = {}
    for parameter, slot in zip(parameters, concept.slots, strict=True):
        properties[parameter] = {"type": slot.kind} | (
            {"description": slot.note} if described else {}
        )
    if rng.random() < 0.2:
        properties[rng.choice(("format", "limit", "units", "verbose"))] = rng.choice(EXTRA)
    shape: Arguments = {"type": "object", "properties": properties}
    if rng.random() < 0.75:
        shape["required"] = list(parameters)
    schema: Arguments = {"name": name}
    if rng.random() < 0.9:
        schema["description"] = rng.choice(concept.notes)
    schema["parameters"] = shape
    return Tool(concept, name, tuple(parameters), schema)


@dataclass(frozen=True, slots=True)
class Call:
    """A question, the call it needs, a result and what to say then."""

    question: str
    name: str
    arguments: Arguments
    response: str
    answer: str
    key: str


def make_call(rng: random.Random, tool: Tool) -> Call:
    """Draw arguments for a tool and put them into a question and a result."""
    values = [slot.draw(rng) for slot in tool.concept.slots]
    question = rng.choice(tool.concept.questions).format(*values)
    arguments = dict(zip(tool.parameters, values, strict=True))
    response, answer = rng.choice(tool.concept.results)
    found = {"n": rng.randrange(1, 31), "m": rng.randrange(10, 60), "x": _words(rng), "p": _name(rng),
             "w": rng.choice(("sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear"))}  # fmt: skip
    answer = answer.format(*values, **found)
    key = f"tool:{tool.concept.notes[0]}:{json.dumps(values)}"
    return Call(
        question,
        tool.name,
        arguments,
        response.format(*values, **found),
        answer[:1].upper() + answer[1:],
        key,
    )


def draw_tools(rng: random.Random) -> list[Tool]:
    """One to four different tools."""
    count = rng.choices((1, 2, 3, 4), (4, 3, 2, 1))[0]
    concepts = rng.sample(CONCEPTS, count)
    concepts = [invented(rng) if rng.random() < 0.2 else concept for concept in concepts]
    tools, names = [], set()
    for concept in concepts:
        tool = make_tool(rng, concept)
        if tool.name not in names:
            names.add(tool.name)
            tools.append(tool)
    return tools


def other_concept(rng: random.Random, tools: list[Tool]) -> Concept:
    """A concept that none of the tools offers."""
    taken = {tool.concept.notes[0] for tool in tools}
    return rng.choice([concept for concept in CONCEPTS if concept.notes[0] not in taken])
