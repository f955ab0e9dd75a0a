"""Patterns of JSON schemas as the grammar library reads them: regular expressions that do not look around."""

import re
from dataclasses import dataclass

# An escape, the beginning of a group, or any other character: each is found without going back.
_PIECE = re.compile(r"\\.|\((?:\?(?:<?[=!]|P=|\(|>))?|.", re.DOTALL)
_LOOKING = frozenset({"(?=", "(?!", "(?<=", "(?<!"})
# Conditions, groups that do not go back, and what an earlier group took: no regular language has these.
_IRREGULAR = frozenset({"(?P=", "(?(", "(?>"})
_BACK = re.compile(r"\\[1-9k]")
_EMPTY = "(?:)"
_PLAIN = {"\\A": "^", "\\Z": "$", "\\z": "$", "\\b": _EMPTY, "\\B": _EMPTY}


@dataclass(frozen=True, slots=True)
class PlainPattern:
    """A pattern that does not look around; one that `is_wider` may take more than the given one."""

    text: str
    is_wider: bool


def without_assertions(pattern: str) -> PlainPattern | None:
    """The pattern without what only looks around, so that it takes all that it took.

    None where it is no regular language.
    """
    pieces: list[str] = []
    depth = 0  # of groups inside an assertion, itself counted
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
    """The beginning of the class that is open behind `piece`, or "". A bracket that comes first is a character."""
    if not before:
        return piece if piece == "[" else ""
    return "" if piece == "]" and before not in ("[", "[^") else (before + piece)[:3]
