"""Generated pages of Markdown."""

from collections.abc import Iterable, Sequence

NOTE = "<!-- Written by `make docs` from the code; do not edit. -->"


def page(title: str, *parts: str) -> str:
    """Returns the text of a page, with an empty line between its parts."""
    return "\n\n".join([NOTE, f"# {title}", *parts]) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table with one line per row."""
    return "\n".join(
        [row(heads), f"| {' | '.join(['---'] * len(heads))} |", *(row(cells) for cells in rows)]
    )


def row(cells: Sequence[object]) -> str:
    """Returns the cells of a row between bars, unescaped."""
    return f"| {' | '.join(map(str, cells))} |"
