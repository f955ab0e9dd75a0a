"""The pages of `--help` of all commands, as `weft.cli.help` prints them."""

from typing import Any

from tools.compact_json import compact_json
from weft.cli.commands import COMMANDS, GROUPS, make_app
from weft.cli.help import Page, Panel


def help_pages() -> str:
    """Returns the help pages as JSON, by the words that call each command."""
    names = ["", *GROUPS, *(command.words for command in COMMANDS)]
    return compact_json({name: _page(name.split()) for name in names}) + "\n"


def _page(words: list[str]) -> Page:
    app = make_app()
    _, apps, _ = app.parse_commands(words)
    below = (apps[-1].help_epilogue or "") if len(words) == len(apps) - 1 else ""
    apps[-1].help_epilogue = ""
    app.help_formatter = collected = _Collector()
    app.help_print(words)
    return Page(
        above=collected.above,
        panels=collected.panels,
        below=str(below).split("\n\n") if below else [],
    )


class _Collector:
    """Collects the help that the parser would print."""

    def __init__(self) -> None:
        self.above: list[str] = []
        self.panels: list[Panel] = []

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        rows = [
            (", ".join(entry.display_labels_with_metavar), _text(entry)) for entry in panel.entries
        ]
        if rows:
            self.panels.append(Panel(title=str(panel.title), rows=rows))

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        self.above.append(f"Usage: {_plain(usage).strip().removeprefix('Usage: ')}")

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        self.above += _plain(description).strip().split("\n\n")


def _text(entry: Any) -> str:
    """Returns the text beside a flag's names."""
    about = [" ".join(_plain(entry.description).split())]
    if entry.choices:
        about.append(f"[choices: {', '.join(entry.choices)}]")
    if entry.default is not None:
        about.append(f"[default: {entry.default}]")
    if entry.required:
        about.append("[required]")
    return " ".join(about)


def _plain(value: Any) -> str:
    """Returns the plain text of an object that the parser made for printing."""
    return str(getattr(value, "plain", None) or getattr(value, "primary_renderable", value) or "")
