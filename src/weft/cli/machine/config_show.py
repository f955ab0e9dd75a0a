"""Output of `weft config show`: every setting of `weft serve`, its value and its source."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from weft.cli.machine.serve_line import DEFAULT, Origin, read_serve_line
from weft.cli.options import ServeOptions
from weft.cli.shown import print_json, print_table

_HIDDEN = ("translated", "vllm_words")
_SECRET = "***"  # noqa: S105 - what is shown in place of one
_UNSET = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `value` is None if the server chooses the value when it starts; of API keys only the number is
    shown.
    """

    name: str
    value: Any
    origin: str
    where: str | None


def run(arguments: Sequence[str], *, changed: bool, json: bool) -> int:
    """Prints all settings, or with `changed` only the settings that differ from their defaults; returns the exit
    status.
    """
    line = read_serve_line(arguments)
    values = {"model": line.model}
    values |= {field.name: getattr(line.options, field.name) for field in fields(ServeOptions)}
    settings = [
        _setting(name, value, line.origins.get(name, DEFAULT))
        for name, value in values.items()
        if name not in _HIDDEN
    ]
    shown = [setting for setting in settings if not changed or setting.origin != DEFAULT.kind]
    if json:
        print_json(shown)
    else:
        cells = [
            (
                one.name.replace("_", "-"),
                _text(one.value),
                " ".join(filter(None, (one.origin, one.where))),
            )
            for one in shown
        ]
        print_table(("setting", "value", "from"), cells)
    return 0


def _setting(name: str, value: Any, origin: Origin) -> Setting:
    if name.endswith("api_key") and value is not None:
        value = _SECRET if isinstance(value, str) else [_SECRET] * len(value)
    shown = str(value) if isinstance(value, Path) else value
    return Setting(name=name, value=shown, origin=origin.kind, where=origin.name)


def _text(value: Any) -> str:
    if value is None:
        return _UNSET
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
