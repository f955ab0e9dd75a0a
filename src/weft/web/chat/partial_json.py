"""Closes a JSON object that was cut off, as the official clients do with a stream's pieces."""

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<open>[\[{]) | (?P<close>[\]}]) | (?P<colon>:) | (?P<comma>,)
      | (?P<value> "(?:[^"\\]++|\\.)*+"
        | -?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![0-9.eE+-])
        | true | false | null | NaN | -?Infinity )
    )""",
    re.VERBOSE | re.DOTALL,
)
_CLOSERS = {"{": "}", "[": "]"}


def completed(text: str) -> str:
    """`text` up to its last complete value, with open brackets closed.

    A complete text is unchanged; an empty one gives an empty object.
    """
    closers: list[str] = []
    end = 0
    is_value = True  # True if a value is expected next, not a key
    for match in _tokens(text):
        match match.lastgroup:
            case "open":
                closers.append(_CLOSERS[match["open"]])
                is_value = closers[-1] == "]"
                end = match.end()
            case "close":
                closers.pop()
                end = match.end()
            case "comma":
                is_value = closers[-1] == "]"
            case "colon":
                is_value = True
            case _ if is_value:
                end = match.end()
    # No bracket was opened or closed after the last complete value.
    return text[:end] + "".join(reversed(closers)) if end else "{}"


def _tokens(text: str) -> Iterator[re.Match[str]]:
    position = 0
    while (match := _TOKEN.match(text, position)) is not None:
        yield match
        position = match.end()
