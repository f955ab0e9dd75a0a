"""The models of a server that has several: from the command line, a table of settings, and a directory."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from cyclopts import App, ArgumentCollection, CycloptsError

from weft.cli.arguments.flags import pick
from weft.cli.arguments.sizes import parse_duration
from weft.cli.commands import make_app
from weft.cli.options import LoadOptions, ServeOptions
from weft.cli.serving.adapters import read_lora_modules
from weft.cli.serving.several.model_names import EXCLUDED, check_seconds, split_name, with_name
from weft.core.errors import ConfigError
from weft.core.values.declare import nearest_flag
from weft.core.values.types import LoRARequest
from weft.model.directory_scan import checkpoints_in
from weft.model.gguf.open import SUFFIX
from weft.web.model_pool.pool_options import PoolOptions

log = logging.getLogger("weft.cli")

_OWN = ("model", "pinned", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSetting:
    """A model, the name of which requests give, with its settings. A model that was `found` in a directory may turn
    out not to be servable.
    """

    name: str
    model: str
    options: ServeOptions
    is_pinned: bool = False
    idle_s: float | None = None
    is_found: bool = False

    @property
    def adapters(self) -> tuple[LoRARequest, ...]:
        """The adapters that the model begins with."""
        return read_lora_modules(self.options.lora_modules or ())


def read_models(texts: Sequence[str], options: ServeOptions) -> list[ModelSetting]:
    """Returns the models, the default one first; raises `ConfigError` for a setting or a name that is wrong."""
    given = pick(options, PoolOptions)
    models = [*_named(texts, options), *_in_table(given.models, options)]
    if given.model_dir is not None:
        known = {each.name for each in models}
        found = _in_directory(given.model_dir, options)
        models += (each for each in found if each.name not in known)
    if not models:
        raise ConfigError(f"--model-dir {given.model_dir}: no checkpoint and no GGUF file in it")
    names = [name for each in models for name in (each.name, *_names_of_adapters(each))]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two models have the name {name}; write NAME=MODEL")
    return models


def _names_of_adapters(setting: ModelSetting) -> list[str]:
    return [adapter.lora_name for adapter in setting.adapters]


def _setting(name: str, model: str, options: ServeOptions, **more: Any) -> ModelSetting:
    idle_s = more.pop("idle_s", pick(options, PoolOptions).models_idle)
    own = with_name(options, name)
    return ModelSetting(name=name, model=model, options=own, idle_s=idle_s, **more)


def _named(texts: Sequence[str], options: ServeOptions) -> Iterator[ModelSetting]:
    for text in texts:
        name, model = split_name(text)
        yield _setting(name or model, model, options)


def _in_table(text: str | None, options: ServeOptions) -> Iterator[ModelSetting]:
    if text is None:
        return
    try:
        table = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--models is not JSON: {error}") from None
    if not isinstance(table, dict) or not all(isinstance(one, dict) for one in table.values()):
        raise ConfigError('--models must be a table of tables: {"NAME": {"model": MODEL}}')
    for name, settings in table.items():
        yield _from_table(name, settings, options)


def _from_table(name: str, settings: Mapping[str, Any], options: ServeOptions) -> ModelSetting:
    where = f"--models {name}"
    if not name.strip():
        raise ConfigError("--models: a name is empty")
    model, pinned, idle = (settings.get(key) for key in _OWN)
    if not isinstance(model, str) or not model:
        raise ConfigError(f"{where}: model must be a directory, a GGUF file or a Hub id")
    if pinned not in (None, True, False):
        raise ConfigError(f"{where}: pinned must be true or false")
    more = {} if idle is None else {"idle_s": _seconds(f"{where}: idle", idle)}
    others = {key: value for key, value in settings.items() if key not in _OWN}
    try:
        changed = replace(options, **_read_flags(others))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return _setting(name, model, changed, is_pinned=pinned is True, **more)


def _seconds(where: str, given: object) -> float:
    try:
        seconds = parse_duration(str(given))
    except ValueError as error:
        raise ConfigError(f"{where} {error}") from None
    check_seconds(where, seconds)
    return seconds


def _read_flags(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of settings, read like the flags of the same names."""
    names = (field.name for field in fields(LoadOptions) if field.name not in EXCLUDED)
    allowed = {name.replace("_", "-") for name in names}
    words = []
    for key, value in settings.items():
        flag = key.replace("_", "-")
        if flag not in allowed:
            near = nearest_flag(flag, allowed)
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigError(f"{key} is not a setting of a model{hint}")
        words += _words(flag, value)
    return _parsed(words)


def _words(flag: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{'' if value else 'no-'}{flag}"]
    values = value if isinstance(value, list) else [value]
    texts = (json.dumps(one) if isinstance(one, dict) else str(one) for one in values)
    return [f"--{flag}={text}" for text in texts]


def _parsed(words: Sequence[str]) -> dict[str, Any]:
    given: list[str] = []

    def record(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        del app, commands
        given.extend(one.name.lstrip("-").replace("-", "_") for one in arguments if one.tokens)

    app = make_app()
    app.config = (record,)
    try:
        _, bound, _ = app.parse_args(["serve", *words], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise ConfigError(" ".join(str(error).split())) from None
    options = bound.arguments.get("options", ServeOptions())
    return {name: getattr(options, name) for name in given}


def _in_directory(directory: Path, options: ServeOptions) -> Iterator[ModelSetting]:
    if not directory.is_dir():
        raise ConfigError(f"--model-dir {directory}: no such directory")
    for path in checkpoints_in(directory):
        relative = path.relative_to(directory).as_posix().removesuffix(SUFFIX)
        name = path.name if relative == "." else relative
        yield _setting(name, str(path), options, is_found=True)
