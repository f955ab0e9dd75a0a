"""Settings from a configuration file, for options that neither the command line nor the environment sets.

The file is one flat table, apart from `models`; each key is a flag's name, with "-" or "_". Unknown keys are errors
that name the key.
"""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import yaml
from cyclopts import App, Argument, ArgumentCollection, Token
from cyclopts.config import Dict

from weft.cli.arguments.settings import NOTES, VLLM_WORDS
from weft.compat.vllm import find_flag, translate
from weft.core.errors import ConfigError
from weft.core.values.declare import nearest_flag

_READERS: dict[str, Callable[[str], Any]] = {
    ".json": msgspec.json.decode,
    ".toml": tomllib.loads,
    ".yaml": yaml.safe_load,
    ".yml": yaml.safe_load,
}
# A setting that is a table; as a flag it is JSON. The parser would take the key for the command of that name.
_MODELS = "models"
# Settings that a file may not have; a file that names another file would start a chain.
_NOT_HERE = {"--config", NOTES, VLLM_WORDS, "*"}


def read_settings(path: Path) -> dict[str, Any]:
    """Returns the table of settings in the file `path`. Raises `ConfigError` with the path and the reason."""
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise ConfigError(f"--config {path}: the name must end in {', '.join(_READERS)}")
    try:
        settings = read(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise ConfigError(f"--config {path}: {err.strerror}") from err
    except (ValueError, RecursionError, yaml.YAMLError) as err:
        raise ConfigError(f"--config {path}: {' '.join(str(err).split())}") from err
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise ConfigError(
            f"--config {path}: the file must be a table of settings, whose keys are names of flags"
        )
    return {str(key): value for key, value in settings.items()}


def apply(path: str, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Sets each argument that has no value yet from the configuration file."""
    table: dict[str, Any] = {}
    by_flag = {argument.name: argument for argument in arguments if argument.name not in _NOT_HERE}
    for key, value in read_settings(Path(path)).items():
        name = key.replace("_", "-")
        if name in table:
            raise ConfigError(f'--config {path}: duplicate key "{name}", spelled with - and with _')
        table[name] = value
    if commands == ("serve",):
        table, notes = _to_own(path, table)
        translated = next(argument for argument in arguments if argument.name == NOTES)
        for note in notes:
            translated.append(Token(keyword=NOTES, value=note, source=f"--config {path}"))
    if isinstance(models := table.get(_MODELS), dict) and f"--{_MODELS}" in by_flag:
        del table[_MODELS]
        argument = by_flag[f"--{_MODELS}"]
        if not argument.tokens:
            text = json.dumps(models, default=str)
            argument.append(Token(keyword=_MODELS, value=text, source=f"--config {path}"))
    for name, value in table.items():
        _check(path, name, value, by_flag)
    Dict(table, source=f"--config {path}", use_commands_as_keys=False)(app, commands, arguments)


def _to_own(path: str, table: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the table with vLLM's settings translated to Weft's, and the notes about the translations."""
    ours: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in table.items():
        flag = find_flag(name)
        if flag is None:
            ours[name] = value
        elif setting := translate(flag, value, f"--config {path}: {name} {value}"):
            is_object = flag.is_json and isinstance(value, dict)
            ours[setting.name.replace("_", "-")] = json.dumps(value) if is_object else setting.value
            notes += [setting.note] if setting.note else []
    return ours, notes


def _check(path: str, name: str, value: object, by_flag: dict[str, Argument]) -> None:
    argument = by_flag.get(f"--{name}")
    if argument is None:
        near = nearest_flag(f"--{name}", by_flag)
        hint = f'; did you mean "{near.removeprefix("--")}"?' if near else ""
        raise ConfigError(f'--config {path}: unknown setting "{name}"{hint}')
    values = value if isinstance(value, list) else [value]
    if any(item is None or isinstance(item, dict | list) for item in values):
        raise ConfigError(f'--config {path}: "{name}" must be a value or a list of values')
    if _takes_text(argument.hint) and not all(isinstance(item, str) for item in values):
        # YAML and TOML convert numbers (0123 is 83, 1.10 is 1.1), so the text that was written is lost.
        raise ConfigError(f'--config {path}: "{name}" takes text; put its value in quotes')


def _takes_text(hint: object) -> bool:
    return hint is str or any(_takes_text(part) for part in get_args(hint))
