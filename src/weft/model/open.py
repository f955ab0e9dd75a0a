"""`find_model` and `open_model`: a name from the command line to a checked `Checkpoint`."""

import re
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path

import msgspec

from weft.core.config import NO_OVERRIDES, FileOverrides
from weft.core.errors import ConfigError
from weft.model.checkpoint import Checkpoint
from weft.model.directory import open_directory
from weft.model.embedded.echo import open_echo
from weft.model.embedded.parameters import parse_parameters
from weft.model.embedded.random import open_random
from weft.model.fields import shown
from weft.model.overrides import refuse_overrides
from weft.model.weights import DTYPES

__all__ = ["Checkpoint", "find_model", "open_model"]

RUNNERS = ("auto", "generate", "pooling")

_EMBEDDED = "embedded:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TOY_NOTICE = (
    "embedded:tiny is a toy of a few million parameters: it chats about a few dozen topics and is "
    "often wrong."
)


def open_model(
    name: str,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    runner: str = "auto",
    overrides: FileOverrides = NO_OVERRIDES,
) -> Checkpoint:
    """Find a model by directory, Hub id or `embedded:…`; a `ConfigError` says why it cannot be served.

    `dtype` other than "auto" rounds the weights to that type. `revision` is for Hub ids only.
    `runner` is what the model is for: "generate", "pooling" or, as its files say, "auto".
    """
    found = find_model(name, revision=revision, dtype=dtype, runner=runner, overrides=overrides)
    return found.with_tokenizer()


def find_model(
    name: str,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    runner: str = "auto",
    overrides: FileOverrides = NO_OVERRIDES,
) -> Checkpoint:
    """The same without its tokenizer, which is read by `Checkpoint.with_tokenizer`."""
    find = partial(_find, name, revision=revision, dtype=dtype, runner=runner, overrides=overrides)
    return replace(find(), find_again=find)


def _find(
    name: str, *, revision: str | None, dtype: str, runner: str, overrides: FileOverrides
) -> Checkpoint:
    if runner not in RUNNERS:
        raise ConfigError(f"runner is {shown(runner)}; it must be one of {', '.join(RUNNERS)}")
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype is {shown(dtype)}; it must be one of auto, {', '.join(DTYPES)}")
    if name.endswith(".gguf"):
        raise ConfigError(
            f"{name}: GGUF files are not read; give a directory with safetensors, or a Hub id (owner/name)"
        )
    overrides = _with_local_tokenizer(overrides)
    if name.startswith(_EMBEDDED):
        _refuse_revision(name, revision)
        return _open_embedded(name, dtype, runner, overrides)
    path = _local_directory(name)
    if path is not None:
        _refuse_revision(name, revision)
    elif not is_hub_id(name):
        raise ConfigError(
            f"{shown(name)}: no such directory, and not a Hub id (owner/name) or one of embedded:tiny, "
            "embedded:random, embedded:echo"
        )
    else:
        path = _fetch(name, revision)
    return open_directory(path, name=name, dtype=dtype, runner=runner, overrides=overrides)


def _with_local_tokenizer(overrides: FileOverrides) -> FileOverrides:
    """With the tokenizer's directory in place of its name."""
    name = overrides.tokenizer
    if name is None:
        return overrides
    path = _local_directory(name)
    if path is None and not is_hub_id(name):
        raise ConfigError(
            f"--tokenizer {shown(name)}: no such directory, and not a Hub id (owner/name)"
        )
    path = path or _fetch(name, None, is_tokenizer=True)
    return msgspec.structs.replace(overrides, tokenizer=str(path))


def _fetch(name: str, revision: str | None, *, is_tokenizer: bool = False) -> Path:
    # Late: the Hub's client takes 0.1 s to import, in two processes, and most starts do not need it.
    from weft.model.hub import fetch  # noqa: PLC0415

    return fetch(name, revision, is_tokenizer=is_tokenizer)


def is_hub_id(name: str) -> bool:
    """Whether `name` reads as owner/name."""
    return _HUB_ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def _local_directory(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        if not path.is_file():
            return path if name and path.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown ~user, a NUL
        return None
    raise ConfigError(f"{name}: is a file; give the directory that holds config.json")


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise ConfigError(
            f"revision is {shown(revision)}; only a Hub id has revisions, not {shown(name)}"
        )


def _open_embedded(name: str, dtype: str, runner: str, overrides: FileOverrides) -> Checkpoint:
    model, _, query = name.removeprefix(_EMBEDDED).partition("?")
    if model != "tiny":
        refuse_overrides(name, overrides)
    match model:
        case "tiny":
            parse_parameters("tiny", query, ())
            path = Path(str(files("weft.model.embedded"))) / "tiny"
            toy = open_directory(
                path,
                name=name,
                dtype=dtype,
                runner=runner,
                is_own=True,
                overrides=overrides,
            )
            return replace(toy, card=replace(toy.card, notice=_TOY_NOTICE))
        case "random":
            return open_random(name, query, dtype, runner)
        case "echo":
            if runner == "pooling":
                raise ConfigError("embedded:echo has no hidden states; --runner pooling needs some")
            return open_echo(name, query)
        case _:
            raise ConfigError(
                f"embedded:{model}: unknown; there are embedded:tiny, embedded:random, embedded:echo"
            )
