"""Patterns of JSON schemas in the form that the grammar library reads: regular expressions without lookarounds."""

import re
from dataclasses import dataclass

# An escape, the beginning of a group, or any other character; each matches without backtracking.
_PIECE = re.compile(r"\\.|\((?:\?(?:<?[=!]|P=|\(|>))?|.", re.DOTALL)
_LOOKING = frozenset({"(?=", "(?!", "(?<=", "(?<!"})
# Conditions, atomic groups and backreferences do not exist in regular languages.
_IRREGULAR = frozenset({"(?P=", "(?(", "(?>"})
_BACK = re.compile(r"\\[1-9k]")
_EMPTY = "(?:)"
_PLAIN = {"\\A": "^", "\\Z": "$", "\\z": "$", "\\b": _EMPTY, "\\B": _EMPTY}


@dataclass(frozen=True, slots=True)
class PlainPattern:
    """A pattern without lookarounds; with `is_wider` it may match more texts than the given pattern."""

    text: str
    is_wider: bool


def without_assertions(pattern: str) -> PlainPattern | None:
    """Returns the pattern without lookarounds; it matches at least the texts that the given pattern matches.

    Returns None for a pattern that a finite automaton cannot match, such as one with backreferences.
    """
    pieces: list[str] = []
    depth = 0  # nesting depth of groups inside an assertion, which counts too
    in_class = ""
    for piece in _PIECE.findall(pattern):
        is_of_class = bool(in_class) or piece == "["
        in_class = _class_after(in_class, piece)
        if depth:
            if not is_of_class:
                depth += piece.startswith("(") - (piece == ")")
        elif is_of_class:
            pieces.append(piece)
        elif piece in _LOOKING:
            depth = 1
            pieces.append(_EMPTY)
        elif piece in _IRREGULAR or _BACK.fullmatch(piece):
            return None
        else:
            pieces.append(_PLAIN.get(piece, piece))
    return PlainPattern("".join(pieces), _EMPTY in pieces)


def _class_after(before: str, piece: str) -> str:
    """Returns the start of the character class that is open after `piece`, or "" outside of classes.

    A "]" directly after the start of a class is a plain character.
    """
    if not before:
        return piece if piece == "[" else ""
    return "" if piece == "]" and before not in ("[", "[^") else (before + piece)[:3]
