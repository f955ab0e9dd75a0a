"""User settings that replace parts of a model's files: `--tokenizer`, `--hf-overrides` and similar flags."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.config.engine_options import EngineOptions
from weft.core.config.file_overrides import NO_OVERRIDES, FileOverrides
from weft.core.errors import ConfigError
from weft.core.values.params import OF_MODELS
from weft.model.fields import Fields, parse_object, read_bytes
from weft.model.generation import MAX_NEW_TOKENS

_NAMES = {"gguf": "a GGUF file"}
GENERATION = "generation_config.json"
# Keys of the file besides sampling defaults.
_OTHER_KEYS = frozenset(
    ("eos_token_id", "bos_token_id", "pad_token_id", "do_sample", MAX_NEW_TOKENS)
)


def read_overrides(options: EngineOptions) -> FileOverrides:
    """Returns the overrides in `options`, with their JSON parsed."""
    overrides = FileOverrides(
        tokenizer=options.tokenizer,
        hf_overrides=_object("--hf-overrides", options.hf_overrides),
        generation_config=options.generation_config,
        override_generation_config=_object(
            "--override-generation-config", options.override_generation_config
        ),
        mmproj=options.mmproj,
        weight_format=options.weight_format,
    )
    known = _OTHER_KEYS | set(OF_MODELS)
    for key in overrides.override_generation_config:
        if key not in known:
            raise ConfigError(
                f"--override-generation-config: {key} is unknown; known are {', '.join(sorted(known))}"
            )
    return overrides


def _object(flag: str, given: str | dict[str, Any] | None) -> dict[str, Any]:
    if given is None or isinstance(given, dict):
        return given or {}
    return parse_object(given.encode(), flag)


def read_generation(
    files: Mapping[str, bytes], where: str, overrides: FileOverrides = NO_OVERRIDES
) -> Fields:
    """Returns generation_config.json of the model's `files`, or the user's replacement."""
    source = overrides.generation_config
    values: dict[str, object] = {}
    if source == "auto":
        path = f"{where}/{GENERATION}"
        data = files.get(GENERATION)
        values = parse_object(data, path) if data else {}
    elif source == "vllm":
        path = "--generation-config vllm"
    else:
        path = str(Path(source).expanduser() / GENERATION)
        values = parse_object(read_bytes(Path(path)), path)
    if overrides.override_generation_config:
        path = f"{path} with --override-generation-config"
    return Fields(values | overrides.override_generation_config, path)


def check_weight_format(name: str, overrides: FileOverrides, *found: str) -> None:
    """Raises `ConfigError` if the model's files are in other formats (`found`) than the requested one."""
    wanted = overrides.weight_format
    if wanted == "auto" or wanted in found:
        return
    remedy = "leave the flag out"
    if wanted == "gguf":
        remedy = "name one, as DIRECTORY/FILE.gguf or OWNER/NAME:FILE.gguf, or leave the flag out"
    is_what = " and ".join(found) if found else "drawn, and has no files"
    raise ConfigError(
        f"--weight-format {wanted} (vLLM's --load-format or --quantization): {name} is {is_what}, and "
        f"{_NAMES.get(wanted, wanted)} is wanted; {remedy}"
    )


def refuse_overrides(name: str, overrides: FileOverrides) -> None:
    """Raises `ConfigError` for overrides of a model without files."""
    for flag, value in (
        ("--tokenizer", overrides.tokenizer),
        ("--hf-overrides", overrides.hf_overrides),
        ("--mmproj", overrides.mmproj),
        ("--override-generation-config", overrides.override_generation_config),
        ("--generation-config", overrides.generation_config not in ("auto", "vllm")),
    ):
        if value:
            raise ConfigError(f"{flag} is only for models with files; {name} has none")
