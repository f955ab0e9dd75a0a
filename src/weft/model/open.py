"""`find_model` and `open_model`: find the model that a name refers to, and return a checked `Checkpoint`."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path

import msgspec

from weft.core.config.engine import ModelConfig
from weft.core.config.file_overrides import NO_OVERRIDES, FileOverrides
from weft.core.errors import ConfigError
from weft.model.embedded.echo import open_echo
from weft.model.embedded.parameters import parse_parameters
from weft.model.embedded.random import open_random
from weft.model.fields import shown
from weft.model.files.checkpoint import Checkpoint
from weft.model.files.directory import open_directory
from weft.model.gguf.open import SUFFIX, open_gguf
from weft.model.gguf.projector_file import FLAG, NONE
from weft.model.hub.short_names import full_name, similar_names
from weft.model.overrides import check_weight_format, refuse_overrides
from weft.model.weights import DTYPES

__all__ = ["Checkpoint", "find_model", "find_served", "open_model"]

RUNNERS = ("auto", "generate", "pooling")

OnBytes = Callable[[int, int], None]

_EMBEDDED = "embedded:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Models in the package, and the notice of each.
_TOYS = {
    "tiny": "embedded:tiny is a toy of a few million parameters: it chats about a few dozen topics and is often wrong.",
    "tiny-vision": "embedded:tiny-vision is a toy of a million parameters: it names colours in simple pictures, and is "
    "mostly wrong about shapes, counts and digits.",
    "tiny-whisper": "embedded:tiny-whisper is a toy of a quarter million parameters: it writes down six tones, which "
    "two voices say.",
}


def is_local(name: str) -> bool:
    """True if the model is found, or is missing, without a look at the Hub."""
    source = full_name(name)
    is_on_hub = is_hub_id(source) or _hub_file(source) is not None
    return _local_path(name) is not None or not is_on_hub


def open_model(
    name: str,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    runner: str = "auto",
    overrides: FileOverrides = NO_OVERRIDES,
) -> Checkpoint:
    """Opens a model by directory, Hub id, short name or `embedded:…`; raises `ConfigError` if it cannot be served.

    `dtype` other than "auto" rounds the weights to that type. `revision` is only for Hub ids. `runner` is the task:
    "generate", "pooling" or, for the task in the model's files, "auto".
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
    on_bytes: OnBytes | None = None,
) -> Checkpoint:
    """Finds a model like `open_model`, but without its tokenizer, which `Checkpoint.with_tokenizer` reads.

    `on_bytes` gets the numbers of downloaded and total bytes, on any thread.
    """
    find = partial(_find, name, revision=revision, dtype=dtype, runner=runner, overrides=overrides)
    return replace(find(on_bytes=on_bytes), find_again=find)


def find_served(config: ModelConfig) -> Checkpoint:
    """Finds the model of a configuration that another process has resolved."""
    return find_model(
        config.model,
        revision=config.revision,
        dtype=config.load_dtype,
        runner=config.runner_type,
        overrides=config.file_overrides,
    )


def _find(
    name: str,
    *,
    revision: str | None,
    dtype: str,
    runner: str,
    overrides: FileOverrides,
    on_bytes: OnBytes | None = None,
) -> Checkpoint:
    if runner not in RUNNERS:
        raise ConfigError(f"runner is {shown(runner)}; it must be one of {', '.join(RUNNERS)}")
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype is {shown(dtype)}; it must be one of auto, {', '.join(DTYPES)}")
    if overrides.weight_format == "gguf" and not _is_gguf(full_name(name)):
        check_weight_format(name, overrides, *(() if _is_drawn(name) else ("safetensors",)))
    overrides = _with_local_tokenizer(overrides, on_bytes)
    source = name if _local_path(name) is not None else full_name(name)
    if name.startswith(_EMBEDDED):
        _refuse_revision(name, revision)
        return _open_embedded(name, dtype, runner, overrides)
    if _is_gguf(source):
        check_weight_format(name, overrides, "gguf")
        if runner == "pooling":
            raise ConfigError(
                f"{name}: GGUF files are served to generate text, not for --runner pooling"
            )
        file = _gguf_file(source, revision, on_bytes, has_projector=overrides.mmproj is None)
        overrides = _with_local_projector(overrides, on_bytes)
        return open_gguf(file, name=name, dtype=dtype, overrides=overrides)
    if overrides.mmproj is not None:
        raise ConfigError(
            f"{FLAG} is for models in GGUF files; other checkpoints, such as {name}, have their vision tower themselves"
        )
    path = _local_directory(name)
    if path is not None:
        _refuse_revision(name, revision)
    elif not is_hub_id(source):
        raise _unknown(name)
    else:
        path = _fetch(source, revision, on_bytes)
    return open_directory(path, name=name, dtype=dtype, runner=runner, overrides=overrides)


def _unknown(name: str) -> ConfigError:
    similar = similar_names(name)
    names = (
        f" or a short name; similar ones: {', '.join(similar)}"
        if similar
        else ", a short name (weft models names) or one of embedded:tiny, embedded:tiny-vision, embedded:tiny-whisper, "
        "embedded:random, embedded:echo"
    )
    return ConfigError(f"{shown(name)}: no such directory, and not a Hub id (owner/name){names}")


def _is_gguf(name: str) -> bool:
    return name.endswith(SUFFIX) or _hub_file(name) is not None


def _is_drawn(name: str) -> bool:
    return name.startswith(_EMBEDDED) and name.partition("?")[0] != f"{_EMBEDDED}tiny"


def _gguf_file(
    name: str, revision: str | None, on_bytes: OnBytes | None, *, has_projector: bool = False
) -> Path:
    """Returns the local file; with `has_projector` a download includes the projector beside it, if there is one."""
    on_hub = _hub_file(name)
    if on_hub is not None:
        # Imported late, as in `_fetch`.
        from weft.model.hub.snapshots import fetch_gguf  # noqa: PLC0415

        return fetch_gguf(*on_hub, revision, has_projector=has_projector, on_bytes=on_bytes)
    _refuse_revision(name, revision)
    path = _local_path(name)
    if path is None:
        raise ConfigError(f"{shown(name)}: the file does not exist")
    return path


def _hub_file(name: str) -> tuple[str, str] | None:
    """Returns the Hub id, and the GGUF file that the name has after a colon; None if the name has no such form."""
    repo_id, _, file = name.partition(":")
    return (repo_id, file) if file and is_hub_id(repo_id) and _local_path(name) is None else None


def _with_local_tokenizer(overrides: FileOverrides, on_bytes: OnBytes | None) -> FileOverrides:
    """Returns the overrides with the tokenizer's name replaced by its local directory."""
    name = overrides.tokenizer
    if name is None:
        return overrides
    path = find_tokenizer(name, on_bytes=on_bytes, what="--tokenizer ")
    return msgspec.structs.replace(overrides, tokenizer=str(path))


def _with_local_projector(overrides: FileOverrides, on_bytes: OnBytes | None) -> FileOverrides:
    """Returns the overrides with the projector's name replaced by its local file."""
    name = overrides.mmproj
    if name is None or name == NONE:
        return overrides
    if _local_path(name) is None and _hub_file(name) is None:
        raise ConfigError(
            f"{FLAG} {shown(name)}: the file does not exist; a path, OWNER/NAME:FILE or {NONE} is possible"
        )
    found = _gguf_file(name, None, on_bytes)
    return msgspec.structs.replace(overrides, mmproj=str(found))


def find_tokenizer(
    name: str, *, revision: str | None = None, on_bytes: OnBytes | None = None, what: str = ""
) -> Path:
    """Returns the directory of a tokenizer's files: the named directory, or a download from the Hub."""
    path, source = _local_directory(name), full_name(name)
    if path is None and not is_hub_id(source):
        raise ConfigError(f"{what}{shown(name)}: no such directory, and not a Hub id (owner/name)")
    return path or _fetch(source, revision, on_bytes, is_tokenizer=True)


def _fetch(
    name: str, revision: str | None, on_bytes: OnBytes | None, *, is_tokenizer: bool = False
) -> Path:
    # Imported late: the Hub's client takes 0.1 s to import, in two processes, and most starts do not need it.
    from weft.model.hub.snapshots import fetch  # noqa: PLC0415

    return fetch(name, revision, is_tokenizer=is_tokenizer, on_bytes=on_bytes)


def is_hub_id(name: str) -> bool:
    """True if `name` has the form owner/name."""
    return _HUB_ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def _local_directory(name: str) -> Path | None:
    path = _local_path(name)
    if path is not None and path.is_file():
        raise ConfigError(f"{name}: is a file; give the directory that holds config.json")
    return path if path is not None and path.is_dir() else None


def _local_path(name: str) -> Path | None:
    """Returns the path if a file or directory exists there; otherwise None."""
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown ~user, a NUL
        return None


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise ConfigError(
            f"revision is {shown(revision)}; only a Hub id has revisions, not {shown(name)}"
        )


def _open_embedded(name: str, dtype: str, runner: str, overrides: FileOverrides) -> Checkpoint:
    model, _, query = name.removeprefix(_EMBEDDED).partition("?")
    if model not in _TOYS:
        refuse_overrides(name, overrides)
        check_weight_format(name, overrides)
    match model:
        case _ if model in _TOYS:
            parse_parameters(model, query, ())
            path = Path(str(files("weft.model.embedded"))) / model
            toy = open_directory(
                path,
                name=name,
                dtype=dtype,
                runner=runner,
                is_own=True,
                overrides=overrides,
            )
            return replace(toy, card=replace(toy.card, notice=_TOYS[model]))
        case "random":
            return open_random(name, query, dtype, runner)
        case "echo":
            if runner == "pooling":
                raise ConfigError("embedded:echo has no hidden states; --runner pooling needs some")
            return open_echo(name, query)
        case _:
            raise ConfigError(
                f"embedded:{model}: unknown; there are embedded:tiny, embedded:tiny-vision, embedded:tiny-whisper, "
                "embedded:random, embedded:echo"
            )
