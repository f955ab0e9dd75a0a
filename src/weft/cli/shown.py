"""Prints results of commands: as text for people, or as JSON for scripts."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from weft.core.observe.terminal import say


def print_json(value: Any, *, is_line: bool = False) -> None:
    """Prints a value as JSON; with `is_line`, on a single line."""
    encoded = msgspec.json.encode(value)
    say((encoded if is_line else msgspec.json.format(encoded)).decode())


def print_block(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Prints a title, with rows below it."""
    say(title)
    for name, text in rows:
        say(f"  {name:<12}{text}".rstrip())


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table. Each column is as wide as its widest cell."""
    table = [heads, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(heads))]
    for row in table:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        say("  ".join(cells).rstrip())
