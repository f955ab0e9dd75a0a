"""Converts Python literals, as models write them in calls, to JSON text, without evaluating them."""

import json
import re
from collections.abc import Callable, Mapping

from weft.core.values.patterns import NEVER
from weft.text.parsers.streams import Malformed, Reading, TextBuffer

_MAX_DEPTH = 64

# No alternative can begin where another one ends, so the expression does not backtrack.
_TOKEN = re.compile(
    rf"""\s*+(?:
    (?P<text>[rR]?(?:'''(?:[^\\']|\\.|'(?!''){NEVER})*+'''|\"""(?:[^\\"]|\\.|"(?!""){NEVER})*+\"""
            |'[^'\\]*+(?:\\.[^'\\]*+)*+'|"[^"\\]*+(?:\\.[^"\\]*+)*+"))
    |(?P<number>-?\d[\d_]*+(?:\.\d*+)?(?:[eE][+-]?\d++)?|-?\.\d++(?:[eE][+-]?\d++)?)
    |(?P<word>[A-Za-z]++)
    |(?P<mark>[\[\](){{}},:])
    )\s*+""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = {
    "True": "true", "true": "true", "False": "false", "false": "false", "None": "null", "null": "null",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:(\n)|([\\'\"abfnrtv])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3}))"
)
_SHORT = {
    "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip

_PLAIN = re.compile(r"[^'\"()\[\]{},]*")
_UNQUOTED = {quote: re.compile(rf"[^{quote}\\]*") for quote in "'\""}
_CLOSERS = {"(": ")", "[": "]", "{": "}"}


def json_string(text: str) -> str:
    """`text` as a JSON string; besides JSON's own escapes, only characters without UTF-8 encoding are escaped."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


def to_json(text: str) -> str:
    """The JSON of one literal: text, number, True, False, None, list, tuple or dict."""
    tokens = _tokens(text)
    pieces: list[str] = []
    end = _value(tokens, 0, pieces, 0)
    if end != len(tokens):
        raise Malformed
    return "".join(pieces)


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kind and JSON text of every token; marks stay themselves."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Malformed
        kind = match.lastgroup or ""
        tokens.append((kind, _CONVERTERS[kind](match.group(kind))))
        at = match.end()
    return tokens


def _value(tokens: list[tuple[str, str]], at: int, pieces: list[str], depth: int) -> int:
    """Adds the value that begins at `at` to `pieces`; returns the position of the next token."""
    if at >= len(tokens) or depth == _MAX_DEPTH:
        raise Malformed
    kind, text = tokens[at]
    if kind != "mark":
        pieces.append(text)
        return at + 1
    if text not in _CLOSERS:
        raise Malformed
    is_dict = text == "{"
    pieces.append("{" if is_dict else "[")
    at = _items(tokens, at + 1, pieces, depth + 1, is_dict=is_dict, closer=_CLOSERS[text])
    pieces.append("}" if is_dict else "]")
    return at


def _items(
    tokens: list[tuple[str, str]],
    at: int,
    pieces: list[str],
    depth: int,
    *,
    is_dict: bool,
    closer: str,
) -> int:
    is_first = True
    while not _is_mark(tokens, at, closer):
        if not is_first:
            pieces.append(",")
        if is_dict:
            if at >= len(tokens) or tokens[at][0] != "text" or not _is_mark(tokens, at + 1, ":"):
                raise Malformed
            pieces += (tokens[at][1], ":")
            at += 2
        at = _value(tokens, at, pieces, depth)
        is_first = False
        if _is_mark(tokens, at, ","):
            at += 1
        elif not _is_mark(tokens, at, closer):
            raise Malformed
    return at + 1


def _is_mark(tokens: list[tuple[str, str]], at: int, mark: str) -> bool:
    return at < len(tokens) and tokens[at] == ("mark", mark)


def _word(text: str) -> str:
    if text not in _WORDS:
        raise Malformed
    return _WORDS[text]


def _number(text: str) -> str:
    """A number in JSON's spelling: digits on both sides of the point, no leading zeros."""
    text = text.replace("_", "")
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    size = re.search(r"[eE]|$", digits)
    assert size is not None, "it matches the end"
    whole, point, fraction = digits[: size.start()].partition(".")
    fraction = f".{fraction or '0'}" if point else ""
    return sign + (whole.lstrip("0") or "0") + fraction + digits[size.start() :]


def _text(text: str) -> str:
    is_raw = text[0] in "rR"
    text = text.removeprefix(text[0]) if is_raw else text
    size = 3 if text[:3] in ("'" * 3, '"' * 3) and len(text) >= 6 else 1
    inner = text[size:-size]
    return json_string(inner if is_raw else _ESCAPE.sub(_unescape, inner))


def _unescape(match: re.Match[str]) -> str:
    newline, short, *hexes, octal = match.groups()
    if newline:
        return ""
    if short:
        return _SHORT[short]
    code = int(octal, 8) if octal else int(next(filter(None, hexes)), 16)
    if code > 0x10FFFF:
        raise Malformed
    return chr(code)


_CONVERTERS: Mapping[str, Callable[[str], str]] = {
    "text": _text, "number": _number, "word": _word, "mark": lambda text: text,
}  # fmt: skip


def read_literal(buffer: TextBuffer) -> Reading[str]:
    """Reads the text of a literal, up to the comma or bracket that must follow it."""
    pieces: list[str] = []
    closers: list[str] = []
    while True:
        pieces.append((yield from buffer.take_while(_PLAIN)))
        mark = yield from buffer.peek()
        if not closers and mark and mark in ",)]}":
            return "".join(pieces)
        pieces.append((yield from buffer.take_one()))
        if mark in _UNQUOTED:
            yield from _read_quoted(buffer, mark, pieces)
        elif mark in _CLOSERS:
            if len(closers) == _MAX_DEPTH:
                raise Malformed
            closers.append(_CLOSERS[mark])
        elif mark != "," and closers.pop() != mark:
            raise Malformed


def _read_quoted(buffer: TextBuffer, quote: str, pieces: list[str]) -> Reading[None]:
    """Reads the rest of a string, after its first quote."""
    num_quotes = 1
    if (yield from buffer.peek()) == quote:
        pieces.append((yield from buffer.take_one()))
        if (yield from buffer.peek()) != quote:
            return
        pieces.append((yield from buffer.take_one()))
        num_quotes = 3
    num_seen = 0
    while num_seen < num_quotes:
        plain = yield from buffer.take_while(_UNQUOTED[quote])
        mark = yield from buffer.take_one()
        pieces += (plain, mark)
        num_seen = 1 if plain and mark == quote else num_seen + 1 if mark == quote else 0
        if mark == "\\":
            pieces.append((yield from buffer.take_one()))
