"""Runs parsers over texts, and writes what came out in the shortest form that says it all."""

from collections.abc import Iterable, Sequence

from weft.text.parsers.parts import Arguments, Content, OutputParser, Part, Reasoning, ToolCall
from weft.text.parsers.table import make_output_parser

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": ["string", "null"]},
                "where": {"type": "object"},
            },
        },
    },
}


def feed_all(parser: OutputParser, pieces: Iterable[str]) -> list[Part]:
    """Every part, as it came."""
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return [*parts, *parser.finish()]


def join(parts: Sequence[Part]) -> list[tuple[str, ...]]:
    """Neighbours of one kind joined: r(easoning), c(ontent), or a call with its name and arguments."""
    joined: list[tuple[str, ...]] = []
    for part in parts:
        match part:
            case ToolCall(index, name, call_id):
                assert index == sum(entry[0] == "call" for entry in joined)
                joined.append(("call", name, "", *([call_id] if call_id else [])))
            case Arguments(index, text):
                assert joined[-1][0] == "call"
                assert index == sum(entry[0] == "call" for entry in joined) - 1
                kind, name, before, *rest = joined[-1]
                joined[-1] = (kind, name, before + text, *rest)
            case Reasoning(text) | Content(text):
                kind = "r" if isinstance(part, Reasoning) else "c"
                if joined and joined[-1][0] == kind:
                    joined[-1] = (kind, joined[-1][1] + text)
                else:
                    joined.append((kind, text))
    return joined


def take_apart(
    pieces: Iterable[str], reasoning=None, tool=None, **options
) -> list[tuple[str, ...]]:
    """What a parser of these families makes of the pieces."""
    parser = make_output_parser(reasoning=reasoning, tool=tool, tools=[WEATHER], **options)
    return join(feed_all(parser, pieces))


def cuts(text: str) -> list[list[str]]:
    """One text in one piece, by characters, and by sevens."""
    return [[text], list(text), [text[at : at + 7] for at in range(0, len(text), 7)]]
