"""Translates GBNF, the grammar notation with `root ::=`, into Lark that accepts the same texts.

Lark's terminals take the longest match without backtracking, GBNF's do not. So every terminal of the translation is one
character wide: the rules alone decide, and the result is equivalent.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_DEPTH = 64

_RULE = re.compile(r"^[ \t]*[A-Za-z_][\w-]*[ \t]*::=", re.MULTILINE)
_TOKENS = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
      | (?P<rule>[A-Za-z_][\w-]*)\s*::=
      | (?P<name>[A-Za-z_][\w-]*)
      | "(?P<text>(?:\\.|[^"\\\n])*)"
      | \[(?P<chars>(?:\\.|[^\]\\\n])+)\]
      | (?P<repeat>[*+?]|\{\s*\d+\s*(?:,\s*\d*\s*)?\})
      | (?P<mark>[|().])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL
)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"} | {c: c for c in "\\\"'[]^-/"}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    value: str
    line: int


def is_gbnf(text: str) -> bool:
    """True if the grammar is in GBNF; Lark writes its rules with a single colon."""
    return _RULE.search(text) is not None


def to_lark(text: str) -> str:
    """Returns the grammar translated to Lark. Raises `ValueError` with the line number and the error."""
    tokens = list(_tokens(text))
    names = _rule_names(tokens)
    lines = ["start: r" + str(names["root"])]
    parts: list[str] = []
    depth = 0
    for token in tokens:
        if token.kind == "rule":
            _check_closed(depth, token)
            lines.append(" ".join(parts))
            parts = [f"r{names[token.value]}:"]
            continue
        if not parts:
            raise _wrong(token, "a rule must begin with name ::=")
        depth += {"(": 1, ")": -1}.get(token.value, 0) if token.kind == "mark" else 0
        if not 0 <= depth <= MAX_DEPTH:
            raise _wrong(token, f"parentheses do not match, or are deeper than {MAX_DEPTH}")
        parts.append(_lark_of(token, names))
    _check_closed(depth, tokens[-1])
    return "\n".join([*lines, " ".join(parts)]) + "\n"


def _tokens(text: str) -> Iterator[_Token]:
    position, line = 0, 1
    while position < len(text):
        found = _TOKENS.match(text, position)
        kind = found.lastgroup if found is not None else None
        if found is None or kind is None:
            raise ValueError(f"line {line}: {text[position : position + 20]!a} is not understood")
        if kind != "space":
            yield _Token(kind, found.group(kind), line)
        line += found.group().count("\n")
        position = found.end()


def _rule_names(tokens: list[_Token]) -> dict[str, int]:
    names: dict[str, int] = {}
    for token in tokens:
        if token.kind == "rule":
            if token.value in names:
                raise _wrong(token, f"duplicate rule {token.value}")
            names[token.value] = len(names)
    if "root" not in names:
        raise ValueError("the grammar has no rule root")
    return names


def _lark_of(token: _Token, names: dict[str, int]) -> str:
    match token.kind:
        case "name":
            if token.value not in names:
                raise _wrong(token, f"rule {token.value} is not defined")
            return f"r{names[token.value]}"
        case "text":
            characters = [_class_of([c]) for c, _ in _characters(token)]
            return f"({' '.join(characters)})" if characters else '""'
        case "chars":
            return _bracket(token)
        case "repeat":
            return re.sub(r"\s", "", token.value)
        case _:
            return r"/(?s:.)/" if token.value == "." else token.value


def _bracket(token: _Token) -> str:
    """Translates `[a-z]` or `[^a-z]`; a dash means a range unless it is escaped, first or last."""
    characters = list(_characters(token))
    is_negated = characters[0] == ("^", False)
    characters = characters[1:] if is_negated else characters
    if not characters:
        raise _wrong(token, "[^] has no characters")
    parts: list[str] = []
    while characters:
        first, _ = characters.pop(0)
        if len(characters) >= 2 and characters[0] == ("-", False):
            last, _ = characters[1]
            if last < first:
                raise _wrong(token, f"the range {first}-{last} runs backwards")
            parts.append(f"{_hex(first)}-{_hex(last)}")
            del characters[:2]
        else:
            parts.append(_hex(first))
    return f"/[{'^' if is_negated else ''}{''.join(parts)}]/"


def _characters(token: _Token) -> Iterator[tuple[str, bool]]:
    """Yields each character of the token's text, and whether the character was escaped."""
    for found in _ESCAPE.finditer(token.value):
        code = found.group(1) or found.group(2) or found.group(3)
        escaped, plain = found.group(4), found.group(5)
        if plain is not None:
            yield plain, False
        elif code is not None:
            number = int(code, 16)
            if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
                raise _wrong(token, f"\\{found.group()[1:]} is not a character")
            yield chr(number), True
        elif escaped in _NAMED:
            yield _NAMED[escaped], True
        else:
            raise _wrong(token, f"the escape \\{escaped} is unknown")


def _class_of(characters: list[str]) -> str:
    return f"/[{''.join(map(_hex, characters))}]/"


def _hex(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"


def _check_closed(depth: int, token: _Token) -> None:
    if depth:
        raise _wrong(token, "a parenthesis is not closed before here")


def _wrong(token: _Token, what: str) -> ValueError:
    return ValueError(f"line {token.line}: {what}")
