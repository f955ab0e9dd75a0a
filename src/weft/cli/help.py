"""`--help`, and `--help=WORD`, which prints only the flags and commands whose name, help or heading contains the word.

The help pages are in help.json, which `make docs` generates from the declared flags: importing the parser and all flags
takes far longer than printing a page.
"""

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TypedDict

from weft.core.extras import PARTS, WHOLE
from weft.core.observe.terminal import colours, say

PAGES = Path(__file__).with_name("help.json")
_NARROWEST = 20  # minimum width of the column with texts


class Panel(TypedDict):
    """Flags or commands below one heading, each with its help text."""

    title: str
    rows: list[tuple[str, str]]


class Page(TypedDict):
    """The help of a command."""

    above: list[str]
    panels: list[Panel]
    below: list[str]


def wanted(arguments: Sequence[str]) -> str | None:
    """Returns the word of --help=WORD, "" for --help without a word, and None if the arguments request no help."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for argument in own:
        if argument == "-h" or argument.partition("=")[0] == "--help":
            return argument.partition("=")[2]
    return None


def show(arguments: Sequence[str], word: str) -> int | None:
    """Prints the help of the command in `arguments`, or only the entries that contain the word. Returns the exit
    status; None if there is no such command.
    """
    pages: dict[str, Page] = json.loads(as_called(PAGES.read_text("utf-8")))
    path = [argument for argument in arguments if not argument.startswith("-")]
    names = (" ".join(path[:length]) for length in range(len(path), 0 if path else -1, -1))
    command = next((name for name in names if name in pages), None)
    if command is None:
        return None
    page = pages[command]
    if not word:
        say(
            "\n\n".join(
                (*_filled(page["above"]), *_panels(page["panels"]), *_filled(page["below"]))
            )
        )
        return 0
    folded = _folded(word)
    panels = _matching(page["panels"], folded)
    others = _flags_of_vllm(folded) - _names(panels) if command == "serve" else set()
    if panels:
        say("\n\n".join(_panels(panels)))
    if others:
        say(f"Flags of vLLM (see docs/reference/vllm-flags.md): {', '.join(sorted(others))}")
    if not panels and not others:
        error = as_called(f'error: no flag of weft {command} has "{word}" in its help')
        say(error, file=sys.stderr)
        return 1
    return 0


def as_called(text: str) -> str:
    """Returns `text` with the name of the program that runs: `weft-picker` instead of `weft epp`, for example."""
    for word, part in PARTS.items():
        if sys.argv[0] == part:  # as `weft.cli.parts` sets it
            return text.replace(f"weft {word}", part).replace(f"{WHOLE}[", f"{part}[")
    return text


def _matching(panels: Sequence[Panel], word: str) -> list[Panel]:
    found = []
    for panel in panels:
        rows = [
            row for row in panel["rows"] if word in _folded(f"{panel['title']} {' '.join(row)}")
        ]
        if rows:
            found.append(Panel(title=panel["title"], rows=rows))
    return found


def _names(panels: Sequence[Panel]) -> set[str]:
    labels = (label for panel in panels for label, _ in panel["rows"])
    return {part.split()[0] for label in labels for part in label.split(", ")}


def _filled(paragraphs: Sequence[str]) -> list[str]:
    width = shutil.get_terminal_size().columns
    # Paragraphs may contain command lines, whose flags have hyphens.
    return [textwrap.fill(one, width, break_on_hyphens=False) for one in paragraphs]


def _panels(panels: Sequence[Panel]) -> list[str]:
    """Returns the lines of the panels in two columns. A name that is too long for the first column gets a line of its
    own.
    """
    width = shutil.get_terminal_size().columns
    bold, plain = ("\x1b[1m", "\x1b[0m") if colours(sys.stdout) else ("", "")
    shown = []
    for panel in panels:
        lines = [f"{bold}{panel['title']}{plain}"]
        column = min(max(len(label) for label, _ in panel["rows"]), width // 3) + 4
        gap = f"\n{' ' * column}"
        for label, text in panel["rows"]:
            first, *others = textwrap.wrap(text, max(width - column, _NARROWEST)) or [""]
            start = f"  {label}".ljust(column) if len(label) + 4 <= column else f"  {label}{gap}"
            lines.append(gap.join((start + first, *others)).rstrip())
        shown.append("\n".join(lines))
    return shown


def _flags_of_vllm(word: str) -> set[str]:
    known = import_module("weft.compat.vllm").vllm_flags()
    return {name for name in known if word in name}


def _folded(text: str) -> str:
    """Returns `text` in lower case and with hyphens instead of underscores, so that a search ignores such
    differences.
    """
    return text.lower().replace("_", "-")
