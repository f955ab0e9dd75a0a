"""Options of `LLM` and `AsyncLLM`: those of Weft, and vLLM's by their own names."""

import logging
from collections.abc import Iterator, Mapping
from enum import EnumType
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from weft.compat.vllm import Setting, find_flag, translate
from weft.core.config.defaults import UNLIMITED_QUEUE
from weft.core.config.engine_options import EngineOptions
from weft.core.config.quantity import parse_size
from weft.core.errors import BadRequest
from weft.core.values.declare import Declared, Flag, declared
from weft.engine.start.fit import Fitted, find_and_fit

log = logging.getLogger("weft.engine")

# Options of vLLM for the log of a server, which an `LLM` does not have.
_OF_SERVERS = ("disable_log_stats",)
_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a string",
    list[str]: "a list of strings",
    NoneType: "None",
}


def fit_options(model: str, options: Mapping[str, Any]) -> Fitted:
    """Fits the model to the given options, which are Weft's or vLLM's."""
    settings = EngineOptions(model=model, **{**UNLIMITED_QUEUE, **_own_options(options)})
    return find_and_fit(settings, is_shared=True).with_tokenizer()


def _own_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Translates vLLM's options into Weft's; raises an error for an option that Weft cannot follow."""
    own: dict[str, Any] = {}
    for name, value in given.items():
        flag = find_flag(name)
        if flag is not None and value is None:
            continue
        setting = (
            Setting(name, value) if flag is None else translate(flag, value, f"{name}={value!r}")
        )
        if setting is None or name in _OF_SERVERS:
            continue
        if setting.name not in EngineOptions.__struct_fields__:
            allowed = ", ".join(EngineOptions.__struct_fields__)
            raise BadRequest(name, f"LLM has no option {name!r}; it has: {allowed}")
        if setting.note is not None:
            log.info("%s", setting.note)
        own[setting.name] = _checked(setting.name, setting.value)
    return own


def _checked(name: str, value: Any) -> Any:
    """Returns the value in the type of its field. Sizes may be texts as on the command line, and `dtype` torch's."""
    field, flag = _fields()[name]
    if flag.is_json:  # its keys are checked by their owner
        if not isinstance(value, str | dict | msgspec.Struct | None):
            raise BadRequest(name, f"{name} must be a dict or a JSON text, got {value!r}")
        return value
    if flag.is_size and isinstance(value, str) and value not in _words(field.type):
        try:
            return parse_size(value)
        except ValueError as error:
            raise BadRequest(name, f"{name}: {error}") from None
    try:
        return msgspec.convert(_without_torch(name, value), field.type)
    except msgspec.ValidationError:
        allowed = " or ".join(_described(field.type))
        raise BadRequest(name, f"{name} must be {allowed}, got {value!r}") from None


@cache
def _fields() -> Mapping[str, tuple[Declared, Flag]]:
    """Returns the fields of the options that have a flag, by name."""
    return {
        field.name: (field, note)
        for field in declared(EngineOptions)
        for note in field.notes
        if isinstance(note, Flag)
    }


def _words(kind: Any) -> tuple[Any, ...]:
    """Returns the words that a type with literals allows."""
    return tuple(word for part in get_args(kind) for word in get_args(part))


def _described(kind: Any) -> Iterator[str]:
    """Yields what a type allows, in words."""
    if get_origin(kind) is Literal:
        yield "one of " + ", ".join(map(repr, get_args(kind)))
    elif isinstance(kind, EnumType):
        members: Mapping[str, Any] = kind.__members__
        yield "one of " + ", ".join(repr(member.value) for member in members.values())
    elif isinstance(kind, UnionType) or get_origin(kind) is Union:
        for part in get_args(kind):
            yield from _described(part)
    else:
        yield _WORDS.get(kind, str(kind))


def _without_torch(name: str, value: Any) -> Any:
    """Returns the name of a type of torch, such as bfloat16, and other values unchanged."""
    is_torch = name == "dtype" and type(value).__module__ == "torch"
    return str(value).removeprefix("torch.") if is_torch else value
