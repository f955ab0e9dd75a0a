"""Generated pages of Markdown."""

from collections.abc import Iterable, Sequence

NOTE = "<!-- Written by `make docs` from the code; do not edit. -->"


def page(title: str, *parts: str) -> str:
    """Its text: parts have an empty line between them."""
    return "\n\n".join([NOTE, f"# {title}", *parts]) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A line a row."""
    return "\n".join(
        [row(heads), f"| {' | '.join(['---'] * len(heads))} |", *(row(cells) for cells in rows)]
    )


def row(cells: Sequence[object]) -> str:
    """The cells as they are, between bars."""
    return f"| {' | '.join(map(str, cells))} |"
